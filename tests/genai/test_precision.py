"""Precisions of fxonnx.genai.export; each export ends with a comparison of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from transformers import AutoModel, BertConfig
from typer.testing import CliRunner

import fxonnx.genai
from fxonnx import ArgumentError, QuantizeConfig, VerificationError
from fxonnx._cli.commands import app
from fxonnx._transformers import generation

from .small_models import make_model, make_tokenizer

pytest.importorskip("onnxruntime_genai")

FLOAT, FLOAT16, BFLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    gpt2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
    return {"llama": make_model("llama"), "gpt2": make_model("gpt2", **gpt2)}


@pytest.mark.parametrize(
    ("model_type", "precision", "target", "dtype"),
    [
        ("llama", "fp16", "cpu", FLOAT16),
        ("llama", "fp16", "cuda", FLOAT16),
        ("llama", "bf16", "cpu", BFLOAT16),
        ("llama", "int4", "cpu", FLOAT),
        ("llama", "int4", "cuda", FLOAT16),
        ("gpt2", "int4", "cpu", FLOAT),
        ("llama", "int8", "cpu", FLOAT),
        ("llama", "int8", "cuda", FLOAT16),
        ("gpt2", "int8", "cpu", FLOAT),
    ],
)
def test_precisions(
    models: dict[str, Any], model_type: str, precision: Any, target: Any, dtype: int, tmp_path: Path
) -> None:
    model = models[model_type]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fxonnx.genai.export(model, tmp_path, tokenizer=make_tokenizer(), precision=precision, target=target)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    file = onnx.load(tmp_path / "model.onnx")
    assert {value.type.tensor_type.elem_type for value in file.graph.output} == {dtype}
    operators = {node.op_type for node in file.graph.node}
    assert ("MatMulNBits" in operators) == precision.startswith("int")
    providers = '"cuda"' if target == "cuda" else '"provider_options": []'
    assert providers in (tmp_path / "genai_config.json").read_text()


def test_quantization_in_detail(models: dict[str, Any], tmp_path: Path) -> None:
    config = QuantizeConfig("int8", embeddings="int8", exclude=["lm_head"])
    fxonnx.genai.export(models["llama"], tmp_path, tokenizer=make_tokenizer(), quantize=config)
    # A block is at most as long as the rows.
    assert set(attributes_of_products(tmp_path)) == {(8, 64)}


def attributes_of_products(directory: Path) -> list[tuple[int, int]]:
    """The bits and the block size of each product with a quantized weight, in the order of the graph."""
    graph = onnx.load(directory / "model.onnx").graph
    products = [node for node in graph.node if node.op_type == "MatMulNBits"]
    found = [{each.name: each.i for each in node.attribute} for node in products]
    return [(each["bits"], each["block_size"]) for each in found]


def test_the_command_quantizes_in_detail(models: dict[str, Any], tmp_path: Path) -> None:
    models["llama"].save_pretrained(tmp_path / "llama")
    make_tokenizer().save_pretrained(tmp_path / "llama")
    command = ["genai", str(tmp_path / "llama"), "-o", str(tmp_path / "out"), "--precision", "int8"]
    command += ["--block-size", "32", "--embeddings", "int8", "--lm-head", "int4"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    *layers, head = attributes_of_products(tmp_path / "out")
    assert set(layers) == {(8, 32)}
    assert head == (4, 32)
    operators = {node.op_type for node in onnx.load(tmp_path / "out" / "model.onnx").graph.node}
    assert "GatherBlockQuantized" in operators


DETAILS: tuple[tuple[list[str], dict[str, Any]], ...] = (
    (["int8", "--lm-head", "int8"], {}),
    (["int4", "--block-size", "32"], {}),
    (["int4", "--block-size", "64"], {"block_size": 64, "embeddings": "tied"}),
    (["int8", "--block-size", "64"], {"block_size": 64, "embeddings": "tied"}),
    (["int4", "--block-size", "64", "--embeddings", "float"], {"block_size": 64, "embeddings": "float"}),
    (["int4", "--lm-head", "int8"], {"block_size": 32, "embeddings": "tied", "lm_head": "int8"}),
)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("arguments", "config"), DETAILS)
def test_details_change_nothing_else_of_the_precision(
    arguments: list[str], config: dict[str, Any], tied: bool, tmp_path: Path
) -> None:
    make_model("llama", tie_word_embeddings=tied).save_pretrained(tmp_path / "llama")
    make_tokenizer().save_pretrained(tmp_path / "llama")
    command = ["genai", str(tmp_path / "llama"), "-o", str(tmp_path / "command"), "--no-verify", "--precision"]
    done = CliRunner().invoke(app, [*command, *arguments])
    assert done.exit_code == 0, done.output
    precision: Any = arguments[0]
    options: dict[str, Any] = {"quantize": QuantizeConfig(precision, **config)} if config else {"precision": precision}
    fxonnx.genai.export(tmp_path / "llama", tmp_path / "expected", verify=False, **options)
    # The products' weights, the embedding and their blocks.
    assert (tmp_path / "command" / "model.onnx").read_bytes() == (tmp_path / "expected" / "model.onnx").read_bytes()


def test_the_comparison_uses_the_rounded_weights(
    models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The original weights generate other tokens than the rounded ones.
    monkeypatch.setattr(
        "fxonnx._transformers.families.decoder.rounded_weights", lambda model, _program: torch.no_grad()
    )
    with pytest.raises(VerificationError, match=r"other tokens than transformers in row 0 of batch 1: token [0-9]+ is"):
        fxonnx.genai.export(models["gpt2"], tmp_path / "out", tokenizer=make_tokenizer(), precision="int4")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def other_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime-genai generates wrong tokens."""

    def shifted(*arguments: Any) -> list[list[int]]:
        return [[token % 299 + 1 for token in row] for row in original(*arguments)]

    original = generation._generated
    monkeypatch.setattr(generation, "_generated", shifted)


@pytest.mark.usefixtures("other_tokens")
@pytest.mark.parametrize(("model_type", "precision"), [("mixtral", "int4"), ("mixtral", "fp32"), ("llama", "int4")])
def test_rounded_activations_of_routers_are_named(model_type: str, precision: Any, tmp_path: Path) -> None:
    model = make_model(model_type, **({"num_local_experts": 4} if model_type == "mixtral" else {}))
    with pytest.raises(VerificationError, match="generates other tokens than transformers in row 0") as caught:
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer(), precision=precision)
    is_named = "activations rounded to 8 bits can make a router choose another expert" in str(caught.value)
    assert is_named == ((model_type, precision) == ("mixtral", "int4"))
    if is_named:
        directory = tmp_path / "out"
        fxonnx.genai.export(model, directory, tokenizer=make_tokenizer(), precision=precision, verify=False)


@pytest.mark.usefixtures("other_tokens")
def test_no_file_is_written_if_tokens_differ(models: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("kept")
    with pytest.raises(VerificationError, match="onnxruntime-genai generates other tokens than transformers in row 0"):
        fxonnx.genai.export(models["llama"], tmp_path, tokenizer=make_tokenizer())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


PRODUCTS: dict[Any, list[tuple[int, int]]] = {
    # Queries, keys and values are one product; then the output of attention, gate, up and down, and the logits.
    "exact": [],
    "balanced": [*2 * [(8, 32), (4, 32), (4, 32), (4, 32), (4, 32)], (8, 32)],
    "fast": [*2 * [(4, 128), (4, 128), (4, 128), (4, 128), (4, 64)], (8, 128)],
    "prefill": [(8, 32)],
    "int8": [*2 * [(8, 16), (8, 32), (8, 32), (8, 32), (8, 32)], (8, 32)],
}


@pytest.mark.parametrize("recipe", PRODUCTS)
def test_recipes(recipe: Any, tmp_path: Path) -> None:
    model = make_model("llama", hidden_size=128, intermediate_size=192, tie_word_embeddings=True)
    option: Any = {"precision" if recipe == "int8" else "recipe": recipe}
    fxonnx.genai.export(model, tmp_path, tokenizer=make_tokenizer(), **option)
    assert attributes_of_products(tmp_path) == PRODUCTS[recipe]
    file = onnx.load(tmp_path / "model.onnx")
    operators = [node.op_type for node in file.graph.node]
    assert ("MatMulIntegerToFloat" in operators) == (recipe == "prefill")
    assert operators.count("GatherBlockQuantized") == (recipe != "exact")
    # The table and the layer of the logits are stored once.
    tables = [each.name for each in file.graph.initializer if list(each.dims[:1]) == [300] and len(each.dims) > 1]
    assert len([name for name in tables if name.endswith("::int8")]) == (recipe != "exact")


WIDTHS = [
    *[(width, form) for width in (576, 960, 100) for form in ("balanced", "fast", "prefill", "int4", "int8")],
    *[(width, form) for width in (1536, 2048, 3072) for form in ("balanced", "fast")],
]


@pytest.mark.parametrize(("width", "form"), WIDTHS)
def test_widths_that_blocks_do_not_divide(width: int, form: Any, tmp_path: Path) -> None:
    sizes = {"hidden_size": width, "intermediate_size": 72, "head_dim": 16, "num_hidden_layers": 1}
    model = make_model("llama", **sizes, tie_word_embeddings=True)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
    option = {"precision": form} if form.startswith("int") else {"recipe": form}
    options: Any = {**option, "verify": False, "last_logits": False}
    fxonnx.genai.export(model, tmp_path, tokenizer=make_tokenizer(), **options)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for batch, length in ((1, 1), (2, 9)):
        ids = torch.arange(3, 3 + batch * length).reshape(batch, length)
        feeds = {"input_ids": ids.numpy(), "attention_mask": torch.ones_like(ids).numpy()}
        feeds |= {f"past_key_values.0.{part}": np.zeros((batch, 2, 0, 16), np.float32) for part in ("key", "value")}
        (logits,) = session.run(["logits"], feeds)
        expected = model(ids).logits.detach()
        error = float((torch.from_numpy(logits) - expected).norm() / expected.norm())
        assert error < (0.32 if form in ("int4", "fast", "balanced") else 0.04)


OTHER_NAMES: tuple[tuple[str, Any, list[tuple[int, int]]], ...] = (
    ("gpt2", {"recipe": "balanced"}, [*2 * [(8, 32), (4, 32), (4, 32), (4, 32)], (8, 32)]),
    # Only layers for images have the usual names, and the layer of the logits has another one.
    ("git", {"recipe": "balanced", "text_only": True}, [*2 * 6 * [(4, 32)], (8, 32)]),
    ("git", {"precision": "int8", "text_only": True}, [*(2 * 6 + 1) * [(8, 32)]]),
)


@pytest.mark.parametrize(("model_type", "options", "products"), OTHER_NAMES)
def test_recipes_of_models_without_their_layers(
    model_type: str, options: Any, products: list[tuple[int, int]], models: dict[str, Any], tmp_path: Path
) -> None:
    model = models.get(model_type) or make_model(model_type)
    fxonnx.genai.export(model, tmp_path, tokenizer=make_tokenizer(), verify=False, **options)
    assert attributes_of_products(tmp_path) == products


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"recipe": "fats"}, "recipe: expected 'exact', 'balanced', .*, got 'fats'\nhint: did you mean 'fast'"),
        ({"recipe": "fast", "precision": "int8"}, "recipe: 'fast' includes the quantization, and excludes precision"),
        ({"recipe": "exact", "quantize": "int8"}, "recipe: 'exact' includes the quantization, and excludes quantize"),
    ],
)
def test_arguments_that_a_recipe_excludes(options: Any, match: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=match):
        fxonnx.genai.export(tmp_path, tmp_path / "out", **options)


def test_recipes_are_for_decoders(tmp_path: Path) -> None:
    model = AutoModel.from_config(
        BertConfig(vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    )
    with pytest.raises(ArgumentError, match="recipe: supported for decoder-only models only"):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer(), recipe="fast", pooling="mean")


def test_the_probabilities_for_a_text_are_reported(tmp_path: Path) -> None:
    found: list[Any] = []
    model = make_model("llama", hidden_size=64)
    options: Any = {"tokenizer": make_tokenizer(), "on_quality": found.append}
    fxonnx.genai.export(model, tmp_path / "exact", **options, recipe="exact")
    assert found[0].kl < 1e-6
    assert found[0].top1 == 1
    with pytest.warns(UserWarning, match="'fast' changes this model more than most: for a text of 127 tokens, KL"):
        fxonnx.genai.export(model, tmp_path / "fast", **options, recipe="fast")
    assert found[1].kl > 0.35
