"""fxonnx.genai.export: files, the comparison at the end, the command line, and errors."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import fxonnx.genai
from fxonnx import ArgumentError, ExportError, QuantizeConfig, SaveError
from fxonnx._cli.commands import app
from fxonnx._transformers.language_models import prompt_template, with_chat_template
from fxonnx._transformers.layouts.genai_config import INPUT_KEYS, genai_keys

from .small_models import PADDING, generated, generated_by_transformers, make_model, make_tokenizer, padded, prompt

og = pytest.importorskip("onnxruntime_genai")


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("llama", num_hidden_layers=1)


@pytest.fixture(scope="module")
def checkpoint(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture
def plain_tokenizer() -> Any:
    tokenizer = copy.deepcopy(make_tokenizer())
    tokenizer.chat_template = None
    return tokenizer


def test_a_directory_becomes_a_directory(model: Any, checkpoint: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    out = fxonnx.genai.export(checkpoint, tmp_path / "above" / "out", on_stage=stages.append)
    assert out == tmp_path / "above" / "out"
    files = {path.name for path in out.iterdir()}
    assert {"model.onnx", "genai_config.json", "generation_config.json", "tokenizer.json"} <= files
    assert stages[0] == "load"
    assert stages[-1] == "verify"
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert generated(out, prompt(1)) == generated_by_transformers(model, prompt(1))
    written = og.Tokenizer(og.Model(str(out)))
    assert written.encode("the lazy fox").tolist() == make_tokenizer()("the lazy fox").input_ids
    assert "lazy" in written.apply_chat_template(json.dumps([{"role": "user", "content": "lazy"}]))


def test_the_model_and_the_tokenizer_are_left_unchanged(model: Any, plain_tokenizer: Any, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = model.config.to_dict()
    template = tmp_path / "chat.txt"
    template.write_text("{{ messages[0]['content'] }}!")
    out = tmp_path / "out"
    fxonnx.genai.export(model, out, tokenizer=plain_tokenizer, chat_template=template, verify=False)
    assert plain_tokenizer.chat_template is None
    chat = json.dumps([{"role": "user", "content": "lazy"}])
    assert og.Tokenizer(og.Model(str(out))).apply_chat_template(chat) == "lazy!"
    described = json.loads((out / "inference_model.json").read_text())
    assert described == {"Name": "out", "PromptTemplate": {"assistant": "{Content}", "prompt": "{Content}!"}}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.config.to_dict() == config


def test_the_command_writes_the_same_files(checkpoint: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["genai", str(checkpoint), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "verify ..." not in done.output
    assert "Loading weights" not in done.output
    report = re.search(r"^wrote .*out: \d+ files, [\d.]+ KiB, verified: KL divergence .*$", done.output, re.MULTILINE)
    assert report is not None
    assert "100% equal" in report[0]
    for path in (tmp_path / "out").iterdir():
        assert re.search(rf"^  {re.escape(path.name)} +[\d.]+ KiB$", done.output, re.MULTILINE)
    assert done.output.endswith(
        f"run it: onnxruntime_genai.Model('{tmp_path}/out')\nsee: docs/how-to/language-models.md\n"
    )
    again = fxonnx.genai.export(checkpoint, tmp_path / "again" / "out", verify=False)
    for path in again.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    command = ["genai", str(checkpoint), "-o", str(tmp_path / "out"), "--no-verify", "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "the directory has files\nhint: pass --force to replace files of it" in done.stderr
    done = CliRunner().invoke(app, [*command, "--force"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found) == ["output", "bytes", "files", "verified", "quality"]
    assert found["quality"] is None
    assert str(tmp_path / "out" / "genai_config.json") in found["files"]
    assert found["bytes"] == sum(Path(path).stat().st_size for path in found["files"])


def test_the_command_shows_a_bar_in_a_terminal(checkpoint: Path, tmp_path: Path) -> None:
    command = ["genai", str(checkpoint), "-o", str(tmp_path / "out"), "--no-verify", "--all-logits"]
    command += ["--no-chat-template"]
    done = CliRunner().invoke(app, command, env={"FORCE_COLOR": "1"})
    assert done.exit_code == 0, done.output
    assert "capture" in done.output
    assert "capture ..." not in done.output
    assert not (tmp_path / "out" / "chat_template.jinja").exists()
    assert not (tmp_path / "out" / "inference_model.json").exists()
    assert re.search(r"wrote .*out: \d+ files, [\d.]+ KiB$", done.output, re.MULTILINE)


def test_the_command_shows_one_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["genai", str(tmp_path / "none"), "-o", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert f"error[FX001]: model: directory {tmp_path / 'none'} does not exist" in done.output
    both = ["genai", "checkpoint", "-o", str(tmp_path / "out"), "--no-chat-template", "--chat-template", "chat.jinja"]
    assert "it excludes --chat-template" in CliRunner().invoke(app, both).output
    assert not list(tmp_path.iterdir())


def copied(checkpoint: Path, to: Path, without: str = "", **changes: Any) -> Path:
    """A copy of a checkpoint without some files, and with changes of its configuration."""
    shutil.copytree(checkpoint, to)
    for path in to.glob(without or "none"):
        path.unlink()
    if changes:
        config = to / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    return to


@pytest.mark.parametrize(
    ("without", "changes", "match"),
    [
        ("config.json", {}, r"model: .*copy has no config\.json"),
        ("tokenizer*", {}, "tokenizer: .*copy has no tokenizer: none of tokenizer.json, "),
        ("*.safetensors", {}, "model: .*copy cannot be loaded: .*model.safetensors"),
        ("", {"model_type": "unknown"}, "model: .*copy cannot be loaded: .*unknown"),
        (
            "",
            {"model_type": "phi3_v", "auto_map": {"AutoConfig": "configuration_phi3_v.Phi3VConfig"}},
            "model: .*copy has a model of type 'phi3_v' with code of its own, which is not run\nhint: load the model",
        ),
        (
            "",
            {"model_type": "vit"},
            "model: .*copy has a model of type 'vit', which is not a language model",
        ),
    ],
)
def test_incomplete_checkpoints(
    checkpoint: Path, tmp_path: Path, without: str, changes: dict[str, Any], match: str
) -> None:
    directory = copied(checkpoint, tmp_path / "copy", without, **changes)
    with pytest.raises(ArgumentError, match=f"(?s){match}"):
        fxonnx.genai.export(directory, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def without_two_weights(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if not re.search(r"up_proj|v_proj", name)}


def with_short_down_proj(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value[:3].contiguous() if "down_proj" in name else value for name, value in state.items()}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            without_two_weights,
            r"has no weights for model.layers.0.mlp.up_proj.weight and 1 more\nhint: pass a model object",
        ),
        (with_short_down_proj, r"model.layers.0.mlp.down_proj.weight has the shape \[3, 64\], not \[64, 64\]"),
    ],
)
def test_weights_that_do_not_fit_the_configuration(checkpoint: Path, tmp_path: Path, change: Any, match: str) -> None:
    """transformers would choose them at random."""
    directory = copied(checkpoint, tmp_path / "copy")
    path = directory / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
    with pytest.raises(ArgumentError, match=match):
        fxonnx.genai.export(directory, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_an_incomplete_download(checkpoint: Path, tmp_path: Path) -> None:
    directory = copied(checkpoint, tmp_path / "copy")
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ArgumentError, match=r"model: .*copy cannot be loaded: .*is not a safetensors file"):
        fxonnx.genai.export(directory, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


HYBRID: dict[str, Any] = {
    **{"layer_types": ["linear_attention", "full_attention"], "num_key_value_heads": 4, "head_dim": 8},
    "first_k_dense_replace": 1,
}


@pytest.mark.parametrize(
    ("model_type", "sizes", "match"),
    [
        ("bert", {}, "BertLMHeadModel does not return its cache"),
        (
            "nemotron_h",
            {"hybrid_override_pattern": "M*", "mamba_num_heads": 4, "n_groups": 8},
            "NemotronHForCausalLM does not run with its cache: repeat_interleave: ",
        ),
        (
            "recurrent_gemma",
            {"head_dim": 16, "lru_width": 64},
            r"\(model type 'recurrent_gemma'\) has states other than keys and values(?s:.*)export a step of one token",
        ),
        (
            "kimi_linear",
            {**HYBRID, "linear_head_dim": 16, "linear_num_heads": 4},
            "'kimi_linear'.* has states other than",
        ),
        ("bailing_hybrid", HYBRID, r"'bailing_hybrid'.* has states other than keys and values"),
        ("minimax", {}, r"'minimax'.* has states other than keys and values"),
        (
            "xlstm",
            {"num_heads": 4, "num_blocks": 2},
            r"\(model type 'xlstm'\) does not run with a DynamicCache(?s:.*)export a step of one token",
        ),
        (
            "openai-gpt",
            {"n_embd": 64, "n_layer": 2, "n_head": 4},
            r"\(model type 'openai-gpt'\) does not store keys and values in a cache\nhint: export it without a cache, with fxonnx",
        ),
    ],
)
def test_models_that_onnxruntime_genai_cannot_run(
    model_type: str, sizes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=match):
        fxonnx.genai.export(make_model(model_type, **sizes), tmp_path / "out", tokenizer=make_tokenizer())
    assert not list(tmp_path.iterdir())


class Scaled(torch.nn.Module):
    """A wrapper is not a model of transformers."""


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model": Scaled()}, "model: expected a directory, an id of the Hub or a model of transformers, got a Scaled"),
        ({"tokenizer": None}, "tokenizer: a model object has no tokenizer\nhint: pass tokenizer="),
        (
            {"precision": "int3"},
            "precision: expected 'fp32', 'fp16', 'bf16', 'int4', 'int8', got 'int3'\nhint: did you mean 'int",
        ),
        (
            {"target": "cdua"},
            "target: expected 'cpu', 'cuda', 'webgpu', 'directml', 'tensorrt-rtx', got 'cdua'\nhint: did you mean 'cuda'",
        ),
        ({"target": "cuda", "precision": "bf16"}, "verify: without a GPU, models in bf16 for cuda cannot be run"),
        ({"quantize": "int5"}, "quantize: dtype: expected one of 'int4', 'int8', got 'int5'"),
        ({"opset_version": 6}, "opset_version: 6 is outside the supported opsets"),
        ({"opset_version": 9}, "(?s)1 operator has no ONNX translation and no decomposition at opset 9.*GatherND"),
    ],
)
def test_invalid_arguments(model: Any, changes: dict[str, Any], match: str, tmp_path: Path) -> None:
    arguments = {"model": model, "tokenizer": make_tokenizer(), **changes}
    config = tmp_path / "genai_config.json"
    config.write_text("of an earlier export")
    with pytest.raises(ExportError, match=match):
        fxonnx.genai.export(arguments.pop("model"), tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == [config]
    assert config.read_text() == "of an earlier export"


def test_destinations_that_cannot_be_written(model: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match=r"file cannot be written: it is a file\nhint: specify a directory"):
        fxonnx.genai.export(model, tmp_path / "file", tokenizer=make_tokenizer())
    with pytest.raises(SaveError, match="below cannot be written: Not a directory"):
        fxonnx.genai.export(model, tmp_path / "file" / "below", tokenizer=make_tokenizer())


@pytest.mark.parametrize(
    ("chat_template", "match"),
    [
        (None, r"chat_template: the tokenizer \w+ has no chat template\nhint: pass chat_template=, a template or"),
        ("chat.jinja", r"chat_template: chat.jinja is neither a template with \{\{ or \{% nor a file"),
        (Path(__file__).parent / "__init__.py", r"__init__.py has no template: it contains neither \{\{ nor \{%"),
        (True, "chat_template: expected a template, a file or False, got True"),
    ],
)
def test_a_tokenizer_without_a_chat_template(
    model: Any, plain_tokenizer: Any, tmp_path: Path, chat_template: Any, match: str
) -> None:
    with pytest.raises(ArgumentError, match=match):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=plain_tokenizer, chat_template=chat_template)
    assert not list(tmp_path.iterdir())


_TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"


@pytest.mark.parametrize(
    ("template", "prompt_of_one_message"),
    [
        (_TURNS, "<|user|>{Content}<|end|><|assistant|>"),
        ("{{ date_string }} {{ messages[0].content }}", "26 Jul 2024 {Content}"),
        ("{{ raise_exception('a system message comes first') }}", None),
        ("{{ messages[0].content.upper() }}", None),
        ("{{ messages[0].content[0].text }}", None),
        ("{% for m in messages %}", None),
    ],
)
def test_the_prompt_template_for_foundry_local(
    plain_tokenizer: Any, template: str, prompt_of_one_message: str | None
) -> None:
    plain_tokenizer.chat_template = template
    found = prompt_template(plain_tokenizer)
    assert (found or {}).get("prompt") == prompt_of_one_message


def test_chat_templates_by_family(plain_tokenizer: Any) -> None:
    assert with_chat_template(plain_tokenizer, "{{ messages }}", "vision-language").chat_template == "{{ messages }}"
    for family in ("embedding", "encoder-decoder", "reranker", "vision-language", "whisper"):
        assert with_chat_template(plain_tokenizer, None, family) is plain_tokenizer
    with pytest.raises(ArgumentError, match="chat_template: models of the family 'embedding' do not chat"):
        with_chat_template(plain_tokenizer, "{{ messages }}", "embedding")


def test_inputs_that_onnxruntime_genai_cannot_provide() -> None:
    names = ["input_ids", "past_key_values.0.key", "past_key_values.0.cumulative_length", "image_sizes"]
    values = [ir.Value(name=name) for name in names]
    with pytest.raises(
        ArgumentError, match=r"these inputs or outputs: past_key_values\.0\.cumulative_length, image_sizes"
    ):
        genai_keys(values, INPUT_KEYS)


def test_beams_of_models_with_recurrent_states(tmp_path: Path) -> None:
    model = make_model("mamba2", state_size=8, num_heads=8, head_dim=16, n_groups=2, num_hidden_layers=1)
    model.generation_config.num_beams = 3
    with pytest.warns(UserWarning, match="num_beams above 1 gives other tokens than transformers; .* 1 in place of 3"):
        fxonnx.genai.export(model, tmp_path, tokenizer=make_tokenizer(), verify=False)
    assert json.loads((tmp_path / "genai_config.json").read_text())["search"]["num_beams"] == 1


def test_a_multimodal_model_that_is_a_decoder(tmp_path: Path) -> None:
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14, "crop_size": 28, "image_token_id": 10}
    audio = {"hidden_size": 16, "intermediate_size": 32, "num_blocks": 1, "num_attention_heads": 2}
    audio |= {"audio_token_id": 11, "ext_pw_out_channel": 16, "nemo_conv_channels": 16, "nemo_final_size": 16}
    sizes = {"original_max_position_embeddings": 128, "vision_config": vision, "audio_config": audio}
    model = make_model("phi4_multimodal", **sizes, num_hidden_layers=1)
    fxonnx.genai.export(model, tmp_path, tokenizer=make_tokenizer(), text_only=True, verify=False)
    assert generated(tmp_path, prompt(1)) == generated_by_transformers(model, prompt(1))


def test_images_in_a_form_that_the_files_do_not_have(tmp_path: Path) -> None:
    model = make_model("git", vision_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2})
    with pytest.raises(ArgumentError, match="GitForCausalLM also takes pixel_values, which the files of its family do"):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer())


DECODER = {"d_model": 64, "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 64}


@pytest.mark.parametrize(("precision", "verify"), [("fp32", True), ("int4", True), ("fp32", False)])
@pytest.mark.parametrize(
    ("model_type", "sizes"),
    [
        ("gpt_neo", {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 4}),
        ("roformer", {"is_decoder": True, "embedding_size": 64}),
        (
            "git",
            {"num_hidden_layers": 1, "vision_config": {"hidden_size": 24, "image_size": 32, "num_hidden_layers": 1}},
        ),
        ("mpt", {"d_model": 64, "n_heads": 4, "n_layers": 1, "max_seq_len": 128}),
    ],
)
def test_prompts_of_unequal_lengths_that_onnxruntime_genai_pads_into_the_window(
    model_type: str, sizes: Any, precision: Any, verify: bool, tmp_path: Path
) -> None:
    """These windows or positions are not fused and include padding: the model takes one prompt, a batch is refused."""
    model = make_model(model_type, **sizes)
    with pytest.warns(UserWarning, match="the model takes one prompt at a time: in a batch, prompts of unequal"):
        fxonnx.genai.export(
            model, tmp_path, tokenizer=make_tokenizer(), precision=precision, verify=verify, text_only=True
        )
    if precision == "fp32":
        assert generated(tmp_path, prompt(1)) == generated_by_transformers(model, prompt(1))
    with pytest.raises(RuntimeError, match="input_ids"):
        generated(tmp_path, padded(left=False))


@pytest.mark.filterwarnings("error:the model takes one prompt at a time")
@pytest.mark.parametrize("precision", ["fp32", "int4"])
@pytest.mark.parametrize(
    ("model_type", "sizes"),
    [
        ("granite_swa", {"sliding_window": 4}),
        (
            "llama4_text",
            {"num_local_experts": 2, "intermediate_size_mlp": 64, "head_dim": 16, "attention_chunk_size": 4},
        ),
        ("bigbird_pegasus", DECODER),
        ("mvp", DECODER),
        ("trocr", DECODER),
    ],
)
def test_windows_and_positions_without_padding(model_type: str, sizes: Any, precision: Any, tmp_path: Path) -> None:
    """They are not fused; in a padded batch, each row has the tokens of its prompt alone."""
    model = make_model(model_type, **sizes)
    model.generation_config.forced_eos_token_id = None
    # Activations that are rounded as well may change the tokens of random weights.
    options: Any = {"quantize": QuantizeConfig("int4", accuracy_level=1)} if precision == "int4" else {"verify": False}
    fxonnx.genai.export(model, tmp_path, tokenizer=make_tokenizer(), **options)
    if precision == "fp32":
        rows = zip(padded(left=True).split(1), PADDING, strict=True)
        expected = [generated_by_transformers(model, row[:, count:])[0] for row, count in rows]
        assert generated(tmp_path, padded(left=False)) == expected


@pytest.mark.parametrize("tied", [False, True])
def test_an_export_into_the_checkpoint_references_its_weights(tied: bool, tmp_path: Path) -> None:
    model = make_model("llama", tie_word_embeddings=tied, num_hidden_layers=1)
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    fxonnx.genai.export(tmp_path, tmp_path)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name: after[name] for name in before} == before
    assert {"model.onnx", "genai_config.json"} <= after.keys() - before.keys()
    referenced = {
        tensor.name
        for tensor in onnx.load(tmp_path / "model.onnx", load_external_data=False).graph.initializer
        for entry in tensor.external_data
        if entry.value == "model.safetensors"
    }
    assert "model.layers.0.mlp.down_proj.weight" in referenced
    # Tied weights are stored under one of their names.
    assert {"model.embed_tokens.weight", "lm_head.weight"} & referenced
    assert generated(tmp_path, prompt(1)) == generated_by_transformers(model, prompt(1))


def test_an_export_into_the_checkpoint_in_another_precision(checkpoint: Path, tmp_path: Path) -> None:
    directory = copied(checkpoint, tmp_path / "copy")
    fxonnx.genai.export(directory, directory, precision="fp16", verify=False)
    tensors = onnx.load(directory / "model.onnx", load_external_data=False).graph.initializer
    assert not any(tensor.external_data for tensor in tensors)


def test_a_model_of_bytes_with_several_caches(tmp_path: Path) -> None:
    """BLT, with and without a number of layers in the configuration of the whole."""
    part = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    parts = {
        f"{name}_config": {**part, "hidden_size_global": 32} for name in ("encoder", "decoder", "patcher", "global")
    }
    hashes = {"encoder_hash_byte_group_vocab": 50, "encoder_hash_byte_group_size": [3]}
    model = make_model("blt", patch_in_forward=False, **parts, **hashes)
    with pytest.raises(ArgumentError, match=r"type .blt.. keeps its states in a cache of its own, EncoderDecoderCache"):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer())
    del model.config.num_hidden_layers
    with pytest.raises(ArgumentError, match=r"type .blt.. does not run with a DynamicCache: 'BltConfig' object has no"):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer())


def test_a_model_of_recurrent_layers_that_transformers_cannot_run(tmp_path: Path) -> None:
    model = make_model("lfm2", layer_types=["conv", "conv"], num_hidden_layers=2)
    with pytest.raises(ArgumentError, match="model: Lfm2ForCausalLM does not run with its cache: "):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer())
