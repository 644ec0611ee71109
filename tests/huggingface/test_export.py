"""``fxonnx.huggingface.export`` and ``load``: the directories, their check, generation, and mistakes of callers."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from unittest import mock

import onnx
import onnx_ir as ir
import pytest
import torch

import fxonnx.huggingface
from benchmarks._optimum_models import MODELS
from fxonnx import ArgumentError, VerificationError
from fxonnx._transformers.directory import split_external_data
from fxonnx._transformers.tasks import TASKS
from tests.genai.small_models import VOCABULARY, make_tokenizer
from tests.genai.small_models import make_model as make_genai_model

from .small_models import TYPES, main_task, make_model
from .types_table import export_small, row_of, rows_of_page


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT for two labels with its tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification

    directory = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY, **sizes)).save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    return directory


EVERY_CHANGE = ("bert", "clip", "llama", "t5", "vit", "wav2vec2")
"""One of each kind: encoder, two towers, decoder, encoder-decoder, images, sound. The others run by night."""


@pytest.mark.parametrize(
    "model_type",
    [each if each in EVERY_CHANGE else pytest.param(each, marks=pytest.mark.nightly) for each in TYPES],
)
def test_types(tmp_path: Path, model_type: str) -> None:
    """The main task of each type, compared at two sizes and, if it generates, in 12 tokens of a padded batch."""
    exported = export_small(model_type, tmp_path)
    assert all(check.passed for check in exported.checks)
    generates = any("past_key_values" in value.name for file in exported.files for value in onnx.load(file).graph.input)
    is_compared = generates and model_type != "speecht5"  # which draws random numbers
    assert is_compared == (exported.checks[-1].file in ("generate", "sound"))
    assert rows_of_page()[model_type] == row_of(model_type, exported)


def test_the_page_lists_all_types() -> None:
    assert list(rows_of_page()) == list(TYPES)
    assert {*MODELS} - {*TYPES} == {"mctct"}  # which transformers 5 does not have


def test_the_directory_of_transformers_js(checkpoint: Path, tmp_path: Path) -> None:
    exported = fxonnx.huggingface.export(checkpoint, tmp_path, layout="transformers.js", dtype="fp32,q8,q4,fp16")
    assert exported.task == "text-classification"
    assert [file.name for file in exported.files] == [
        "model.onnx",
        "model_fp16.onnx",
        "model_q4.onnx",
        "model_quantized.onnx",
    ]
    assert {file.parent for file in exported.files} == {tmp_path / "onnx"}
    assert (tmp_path / "tokenizer.json").is_file()
    assert "transformers.js_config" not in json.loads((tmp_path / "config.json").read_text())
    model = onnx.load(exported.files[0])
    assert [value.name for value in model.graph.input] == ["input_ids", "attention_mask"]
    assert [value.name for value in model.graph.output] == ["logits"]
    (limit,) = exported.limits["model.onnx"]
    assert limit == "sequence_length <= 512"
    assert "only for sequence_length <= 512" in str(exported)


def test_a_directory_without_q8_names_the_dtype_to_load(checkpoint: Path, tmp_path: Path) -> None:
    fxonnx.huggingface.export(checkpoint, tmp_path, layout="transformers.js", verify=False)
    assert json.loads((tmp_path / "config.json").read_text())["transformers.js_config"] == {"dtype": "fp32"}


def test_inputs_follow_the_tokenizer(checkpoint: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(checkpoint)
    exported = fxonnx.huggingface.export(model, tmp_path, verify=False)
    names = [value.name for value in onnx.load(exported.files[0]).graph.input]
    assert names == ["input_ids", "attention_mask", "token_type_ids"]  # those of BERT's own tokenizer


def test_a_pipeline_runs_the_loaded_directory(checkpoint: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

    fxonnx.huggingface.export(checkpoint, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    texts = ["the quick brown fox", "a language model predicts the next token"]
    found, expected = (
        pipeline("text-classification", model=model, tokenizer=tokenizer)(texts, batch_size=2)
        for model in (fxonnx.huggingface.load(tmp_path), AutoModelForSequenceClassification.from_pretrained(checkpoint))
    )
    assert [each["label"] for each in found] == [each["label"] for each in expected]
    assert [each["score"] for each in found] == pytest.approx([each["score"] for each in expected], abs=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"do_sample": False}, {"do_sample": False, "num_beams": 3}, {"do_sample": True, "top_k": 5}],
    ids=["greedy", "beams", "sampling"],
)
@pytest.mark.parametrize("model_type", ["llama", "t5", "gemma2"])
def test_generation(tmp_path: Path, model_type: str, options: dict[str, Any]) -> None:
    model = make_model(model_type, main_task(model_type))
    fxonnx.huggingface.export(model, tmp_path, verify=False)
    loaded = fxonnx.huggingface.load(tmp_path)
    ids = torch.tensor([[11, 23, 35, 47], [83, 95, 107, 119]])
    tokens = []
    for each in (model, loaded):
        torch.manual_seed(0)
        tokens.append(each.generate(ids, max_new_tokens=10, min_new_tokens=10, pad_token_id=0, **options))
    assert torch.equal(*tokens)


def test_models_that_do_not_generate_in_transformers(tmp_path: Path) -> None:
    """Its cache has as many layers as the encoder."""
    import transformers

    config = copy.deepcopy(make_model("switch_transformers", main_task("switch_transformers")).config)
    config.num_decoder_layers = 3
    model = transformers.SwitchTransformersForConditionalGeneration(config).eval()
    problem = (
        r"(?s)SwitchTransformersForConditionalGeneration\.generate fails in transformers: IndexError: .*--no-verify"
    )
    with pytest.raises(ArgumentError, match=problem):
        fxonnx.huggingface.export(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_file_computes_and_reuses_the_states_of_the_encoder(tmp_path: Path) -> None:
    exported = fxonnx.huggingface.export(make_model("t5", main_task("t5")), tmp_path)
    decoder = onnx.load(tmp_path / "decoder_model_merged.onnx")
    (branch,) = [node for node in decoder.graph.node if node.op_type == "If"]
    bodies = {attribute.name: attribute.g for attribute in branch.attribute}
    assert {node.op_type for node in bodies["then_branch"].node} == {"Identity"}
    # Two layers, keys and values.
    assert [node.op_type for node in bodies["else_branch"].node].count("MatMul") == 4
    assert decoder.graph.output[1].name == "present.0.decoder.key"
    names = [value.name for value in decoder.graph.input]
    assert names[:2] == ["input_ids", "encoder_hidden_states"]
    assert {"use_cache_branch", "encoder_attention_mask", "past_key_values.1.encoder.value"} <= set(names)
    assert len([check for check in exported.checks if check.file == "decoder_model_merged.onnx"]) == 4


def test_the_model_is_left_unchanged(tmp_path: Path) -> None:
    model = make_model("bert", TASKS["fill-mask"]).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fxonnx.huggingface.export(model, tmp_path, dtype=("fp16", "q4"))
    assert model.training
    assert "forward" not in vars(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_other_files_in_the_directory_are_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    fxonnx.huggingface.export(make_model("bert", TASKS["fill-mask"]), tmp_path, verify=False)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert {path.suffix for path in tmp_path.iterdir()} == {".txt", ".json", ".onnx"}


def test_a_wrong_file_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that differs from the model raises, and leaves nothing."""
    from fxonnx._transformers.layouts import optimum

    def broken(component: Any, *arguments: Any) -> Any:
        program = optimum.__dict__["original"](component, *arguments)
        weights = program.model.graph.initializers.values()
        weight = next(value for value in weights if value.name.endswith("LayerNorm.bias"))
        weight.const_value = ir.tensor(weight.const_value.numpy() + 1, name=weight.name)
        return program

    monkeypatch.setattr(optimum, "original", optimum._export_component, raising=False)
    monkeypatch.setattr(optimum, "_export_component", broken)
    with pytest.raises(VerificationError, match=r"model\.onnx differs from the model in eager torch by .* \(input_ids"):
        fxonnx.huggingface.export(make_model("bert", TASKS["fill-mask"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"task": "text-clasification"},
            "task: expected one of .*; got 'text-clasification'\nhint: .*text-classification",
        ),
        ({"layout": "transformersjs"}, "layout: expected 'optimum', .*, got 'transformersjs'\nhint: .*transformers.js"),
        ({"dtype": "fp32,int3"}, "dtype: expected names of fp32, fp16, q8, q4, q4f16, got 'int3'"),
        ({"dtype": ()}, "dtype: at least one is required"),
        ({"task": "object-detection"}, "task: transformers has no model of type 'bert' for object-detection"),
        ({"task": "fill-mask"}, "no weights for cls.predictions.*, which fill-mask requires"),
    ],
    ids=["task", "layout", "dtype", "no dtype", "impossible task", "no weights"],
)
def test_mistakes(checkpoint: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"(?s){message}"):
        fxonnx.huggingface.export(checkpoint, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_required_inputs(tmp_path: Path) -> None:
    """An input without a default that no processor makes."""
    from transformers import Siglip2VisionConfig, Siglip2VisionModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = Siglip2VisionModel(Siglip2VisionConfig(**sizes))
    with pytest.raises(ArgumentError, match="the input 'pixel_attention_mask', for which no example can be made"):
        fxonnx.huggingface.export(model, tmp_path / "out", task="feature-extraction")


def test_processors_whose_library_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers has a class in place of the processor, which raises ImportError when it is used."""
    import transformers

    class Refusing(type):
        def __getattr__(cls, name: str) -> Any:
            raise ImportError("requires sentencepiece")

    model = make_model("bert", TASKS["fill-mask"])
    mapping = transformers.TOKENIZER_MAPPING
    monkeypatch.setitem(mapping._extra_content, type(model.config), Refusing("Missing", (), {}))
    exported = fxonnx.huggingface.export(model, tmp_path, verify=False)
    assert [value.name for value in onnx.load(exported.files[0]).graph.input] == ["input_ids", "attention_mask"]


def test_models_that_cannot_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ArgumentError, match=r"(?s)model: org/model is neither a directory nor .*hf download org/model"):
        fxonnx.huggingface.export("org/model", tmp_path / "out")
    with pytest.raises(ArgumentError, match=r"model: directory .*/missing does not exist"):
        fxonnx.huggingface.export(tmp_path / "missing", tmp_path / "out")
    with pytest.raises(ArgumentError, match=r"model: .* has no config\.json"):
        fxonnx.huggingface.export(tmp_path, tmp_path / "out")
    with pytest.raises(ArgumentError, match=r"model: expected a directory, .*, got a Linear"):
        fxonnx.huggingface.export(torch.nn.Linear(2, 2), tmp_path / "out")
    model = make_model("bert", main_task("bert"))
    on_gpu = mock.patch.object(type(model), "device", torch.device("cuda", 0))
    with on_gpu, pytest.raises(ArgumentError, match=r"(?s)model: it is on cuda:0, and .*hint: call \.cpu\(\)"):
        fxonnx.huggingface.export(model, tmp_path / "out")
    with pytest.raises(ArgumentError, match=r"directory: .* has no config\.json"):
        fxonnx.huggingface.load(tmp_path)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    settings = {"model_type": "mine", "auto_map": {"AutoConfig": "configuration_mine.MineConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "configuration_mine.py").write_text("raise SystemExit('was run')")
    with pytest.raises(
        ArgumentError, match=r"code of its own, which is not run\nhint: .*only with trust_remote_code=True"
    ):
        fxonnx.huggingface.export(tmp_path, tmp_path / "out")


def test_a_file_of_another_dtype_is_loaded_by_its_suffix(checkpoint: Path, tmp_path: Path) -> None:
    fxonnx.huggingface.export(checkpoint, tmp_path, dtype="fp32,q4", verify=False)
    ids = {"input_ids": torch.tensor([[5, 6, 7]])}
    values = [fxonnx.huggingface.load(tmp_path, file=suffix)(**ids).logits for suffix in ("", "_q4")]
    assert 0 < float((values[0] - values[1]).abs().max()) < 0.1
    with pytest.raises(ArgumentError, match="file: expected one of '', '_q4', got '_fp16'"):
        fxonnx.huggingface.load(tmp_path, file="_fp16")


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "q4"])
@pytest.mark.parametrize("model_type", ["bert", "llama", "t5"])
def test_checkpoints_are_converted_without_loading_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str, dtype: str
) -> None:
    """The same files as from loaded weights, here of a checkpoint in another dtype."""
    from fxonnx._transformers import source

    checkpoint, first, second = (tmp_path / name for name in ("checkpoint", "first", "second"))
    make_model(model_type, main_task(model_type)).bfloat16().save_pretrained(checkpoint)

    def fails(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(source, "load_weights", fails)
        fxonnx.huggingface.export(checkpoint, first, dtype=dtype, verify=False)
    monkeypatch.setattr(source, "without_weights", lambda *_: None)
    fxonnx.huggingface.export(checkpoint, second, dtype=dtype, verify=False)
    names = sorted(path.name for path in first.glob("*.onnx"))
    assert names
    assert [(first / name).read_bytes() == (second / name).read_bytes() for name in names] == [True] * len(names)


def test_buffers_that_cannot_be_computed_again_need_the_weights() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from fxonnx._transformers.meta import compute_buffers

    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1, vocab_size=9))
        model.model.register_buffer("mine", torch.arange(3), persistent=False)
    assert not compute_buffers(model)


def test_external_data_has_the_names_of_transformers_js(tmp_path: Path) -> None:
    import numpy as np
    import onnxruntime

    path, x = tmp_path / "model.onnx", torch.rand(2, 64)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).eval()
    fxonnx.export(model, (x,)).save(path, external_data=True)
    split_external_data(path, chunk=20_000)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx_data", "model.onnx_data_1"]
    (found,) = onnxruntime.InferenceSession(str(path)).run(None, {"input": x.numpy()})
    np.testing.assert_allclose(found, model(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_the_layout_of_onnxruntime_genai(tmp_path: Path) -> None:
    model = make_genai_model("llama")
    exported = fxonnx.huggingface.export(
        model, tmp_path, layout="genai", dtype="q4", processor=make_tokenizer(), verify=False
    )
    assert [file.name for file in exported.files] == ["model.onnx"]
    assert (tmp_path / "genai_config.json").is_file()
    with pytest.raises(ArgumentError, match='dtype: with layout="genai", expected one of fp32, fp16, q4, got q8'):
        fxonnx.huggingface.export(model, tmp_path, layout="genai", dtype="q8", processor=make_tokenizer())
    with pytest.raises(ArgumentError, match='target: layout="genai" has its own'):
        fxonnx.huggingface.export(model, tmp_path, layout="genai", target="onnxruntime", processor=make_tokenizer())


def test_weights_in_4_bits_of_a_merged_decoder(tmp_path: Path) -> None:
    """ONNX Runtime does not find weights of 4 bits from inside of a branch."""
    exported = fxonnx.huggingface.export(make_model("bart", TASKS["text2text-generation"]), tmp_path, dtype="q4")
    decoder, _encoder = (onnx.load(file).graph for file in exported.files)
    assert onnx.TensorProto.UINT4 in {init.data_type for init in decoder.initializer}
    (check,) = (check for check in exported.checks if check.file == "generate_q4")
    assert check.difference is not None
    assert check.difference < 0.5


@pytest.mark.nightly
def test_a_decoder_in_half_precision_that_branches_on_infinities(tmp_path: Path) -> None:
    """Its attention is rounded by another kernel in the model than in the captured program; logits are in float32."""
    model = make_model("pix2struct", TASKS["image-to-text"])
    exported = fxonnx.huggingface.export(model, tmp_path, dtype="fp16")
    assert all(check.passed for check in exported.checks)


def test_a_target(checkpoint: Path, tmp_path: Path) -> None:
    """Weights in 4 bits as WebGPU reads them, at the opset of the target."""
    exported = fxonnx.huggingface.export(checkpoint, tmp_path, dtype="q4", target="onnxruntime-web-webgpu")
    model = onnx.load(exported.files[0])
    assert {"MatMulNBits", "SkipLayerNormalization"} <= {node.op_type for node in model.graph.node}
    assert [each.version for each in model.opset_import if not each.domain] == [20]
    assert all(each.severity == "slow" for each in fxonnx.check(exported.files[0], "onnxruntime-web-webgpu"))


def test_the_command_line(checkpoint: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from fxonnx._cli.commands import app

    options = ["--layout", "transformers.js", "--dtype", "fp32,q4"]
    done = CliRunner().invoke(app, ["hf", str(checkpoint), "-o", str(tmp_path / "out"), *options])
    assert done.exit_code == 0, done.output
    assert "onnx/model_q4.onnx" in done.output
    assert "only for sequence_length <= 512" in done.output
    again = CliRunner().invoke(app, ["hf", str(checkpoint), "-o", str(tmp_path / "out"), *options])
    assert again.exit_code == 1
    assert "out cannot be written: the directory has files\nhint: pass --force" in again.output
    assert (
        CliRunner().invoke(app, ["hf", str(checkpoint), "-o", str(tmp_path / "out"), *options, "--force"]).exit_code
        == 0
    )
    done = CliRunner().invoke(app, ["hf", str(checkpoint), "-o", str(tmp_path / "as_json"), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found) == ["output", "task", "files", "checks", "limits"]
    assert found["files"] == [str(tmp_path / "as_json" / "model.onnx")]
    assert list(found["checks"][0]) == ["file", "inputs", "difference", "tolerance"]
    failed = CliRunner().invoke(app, ["hf", str(checkpoint), "-o", str(tmp_path / "other"), "--dtype", "int3"])
    assert failed.exit_code == 2
    assert "dtype: expected names of fp32" in failed.output


def test_a_class_of_another_task(checkpoint: Path, tmp_path: Path) -> None:
    """An object is refused; a directory is loaded with the class of the task, which the configuration names then."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(checkpoint)
    with pytest.raises(ArgumentError, match="BertForSequenceClassification is not a model for feature-extraction"):
        fxonnx.huggingface.export(model, tmp_path / "out", task="feature-extraction")
    fxonnx.huggingface.export(checkpoint, tmp_path / "out", task="feature-extraction")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["BertModel"]
    ids = torch.tensor([[5, 6, 7]])
    found = fxonnx.huggingface.load(tmp_path / "out")(input_ids=ids).last_hidden_state
    torch.testing.assert_close(found, model.bert(ids).last_hidden_state, rtol=1e-4, atol=1e-5)


def test_images_are_not_omitted_silently(tmp_path: Path) -> None:
    from transformers import (
        CLIPVisionConfig,
        GitConfig,
        GitForCausalLM,
        LlavaConfig,
        LlavaForConditionalGeneration,
        Phi4MultimodalConfig,
        Phi4MultimodalForCausalLM,
    )

    layers = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    text = {**layers, "vocab_size": 128, "num_key_value_heads": 2, "head_dim": 8}
    vision = {**layers, "image_size": 32, "patch_size": 8}
    channels = dict.fromkeys(("ext_pw_out_channel", "nemo_conv_channels", "depthwise_separable_out_channel"), 32)
    audio = {"hidden_size": 32, "intermediate_size": 32, "num_blocks": 1, "num_attention_heads": 2, **channels}
    git = GitForCausalLM(GitConfig(vision_config=vision, **layers, vocab_size=128))
    with pytest.raises(ArgumentError, match="GitForCausalLM does not put features of images in place of tokens"):
        fxonnx.huggingface.export(git, tmp_path)
    phi = Phi4MultimodalForCausalLM(
        Phi4MultimodalConfig(**text, vision_config={**layers, "image_size": 28}, audio_config=audio, pad_token_id=0)
    )
    with pytest.raises(
        ArgumentError, match="Phi4MultimodalForCausalLM also takes image_pixel_values, audio_input_features"
    ):
        fxonnx.huggingface.export(phi, tmp_path)
    llava = LlavaForConditionalGeneration(
        LlavaConfig(text_config={**text, "model_type": "llama"}, vision_config=CLIPVisionConfig(**vision))
    )
    message = "LlavaForConditionalGeneration has no encoder and decoder(?s:.*)hint: its task is image-text-to-text"
    with pytest.raises(ArgumentError, match=message):
        fxonnx.huggingface.export(llava, tmp_path, task="image-to-text")


def test_differences_of_numbers_that_are_not_finite() -> None:
    from fxonnx._transformers.verify import _difference

    nan, inf = float("nan"), float("inf")
    assert _difference(torch.tensor([1.0, nan, -inf]), torch.tensor([1.0, nan, -inf])) == 0
    assert _difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, nan])) == inf
    assert _difference(torch.tensor([1.0, -inf]), torch.tensor([1.0, 2.0])) == inf
    assert _difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])) == 0.5


def test_nan_of_the_model_is_not_taken_for_a_random_number() -> None:
    from fxonnx._transformers.parts import Component
    from fxonnx._transformers.precision import read_variants
    from fxonnx._transformers.verify import compare_component

    class Session:
        def get_inputs(self) -> list[Any]:
            return []

        def run(self, names: list[str], _feeds: Any) -> list[Any]:
            return [torch.zeros(2).numpy() for _ in names]

    def nan() -> dict[str, torch.Tensor]:
        return {"y": torch.tensor([0.0, float("nan")])}

    component = Component("model", nan, lambda _sizes: {}, {})
    program = fxonnx.export(torch.nn.ReLU(), (torch.ones(2),))
    (check, *_) = compare_component(component, program, Session(), read_variants("fp32")[0], "model.onnx")
    assert check.difference == float("inf")


def test_a_file_that_fails_at_another_size_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only sizes that the model or its constraints exclude are left out of the comparison."""
    from fxonnx._transformers.layouts import optimum

    class Failing:
        def __init__(self, session: Any) -> None:
            self.session, self.get_inputs = session, session.get_inputs

        def run(self, outputs: Any, feeds: Any) -> Any:
            if feeds["input_ids"].shape[0] == 3:
                raise RuntimeError("cannot run at this size")
            return self.session.run(outputs, feeds)

    original = optimum._session
    monkeypatch.setattr(optimum, "_session", lambda *given: Failing(original(*given)))
    with pytest.raises(RuntimeError, match="cannot run at this size"):
        fxonnx.huggingface.export(make_model("bert", TASKS["fill-mask"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_external_data_of_replaced_files_is_removed(tmp_path: Path) -> None:
    for name in ("model.onnx_data", "model.onnx_data_1", "other.onnx_data"):
        (tmp_path / name).write_bytes(b"old")
    fxonnx.huggingface.export(make_model("bert", TASKS["fill-mask"]), tmp_path, verify=False)
    assert sorted(path.name for path in tmp_path.glob("*_data*")) == ["other.onnx_data"]
