"""Checkpoints whose weights are quantized: the logits of the stored weights, or one error; never wrong ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import fxonnx.genai
import fxonnx.huggingface
from fxonnx import ArgumentError, SaveError

from .small_models import VOCABULARY, make_tokenizer

IDS = torch.tensor([[5, 9, 23, 7, 31, 44, 60]])
CODES = torch.float8_e4m3fn
BLOCK = 48
"""Does not divide the sizes of the weights, as DeepSeek's 128 does not divide all."""


def make() -> Any:
    from tests.models.torchvision_shim import import_torchvision

    import_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes)).eval()


def by_blocks(scales: Tensor, weight: Tensor) -> Tensor:
    full = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return full[: weight.shape[0], : weight.shape[1]]


def of_blocks(weight: Tensor) -> Tensor:
    rows, columns = (-(-size // BLOCK) for size in weight.shape)
    padded = torch.zeros(rows * BLOCK, columns * BLOCK)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    return padded.reshape(rows, BLOCK, columns, BLOCK).abs().amax((1, 3)) / 448


def tensors(scales: Tensor, full: Tensor, weight: Tensor, suffix: str) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of a weight by the end of their names, and the weight that they represent."""
    codes = (weight / full).to(CODES)
    return {"": codes, suffix: scales}, codes.float() * full


def per_tensor(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scale = weight.abs().max() / 448
    return tensors(scale, scale, weight, "_scale")


def per_feature(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    return tensors(scale, scale, weight, "_scale")


def per_block(weight: Tensor, suffix: str = "_scale_inv") -> tuple[dict[str, Tensor], Tensor]:
    scales = of_blocks(weight)
    return tensors(scales, by_blocks(scales, weight), weight, suffix)


def of_bytes(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    return {"": weight.to(CODES), "_scale": torch.ones(weight.shape[0], 1, dtype=torch.uint8)}, weight


def without_some(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    parts, _ = per_tensor(weight)
    return (parts if weight.shape[0] != weight.shape[1] else {"": parts[""]}), weight


def nearest(values: Tensor, table: Tensor) -> Tensor:
    return (values[..., None] - table).abs().argmin(-1)


def four_bit_floats(weight: Tensor, *, is_divided: bool) -> tuple[dict[str, Tensor], Tensor]:
    """NVFP4: two codes in a byte, the first one in the lower bits."""
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    table = torch.tensor([*positive, *(-value for value in positive)])
    factor = weight.abs().max() / (6 * 448)
    blocks = weight.reshape(len(weight), -1, 16)
    scales = (blocks.abs().amax(-1) / 6 / factor).to(CODES)
    full = scales.float()[..., None] * factor
    codes = nearest(blocks / full, table)
    packed = codes.flatten(1).to(torch.uint8)
    packed = packed[:, ::2] | packed[:, 1::2] << 4
    value = (table[codes] * full).reshape(weight.shape)
    if is_divided:
        return {"_packed": packed, "_scale": scales, "_global_scale": (1 / factor).reshape(1)}, value
    return {"": packed, "_scale": scales, "_scale_2": factor}, value


def of_table(weight: Tensor, kind: str, *, is_nested: bool) -> tuple[dict[str, Tensor], Tensor]:
    """bitsandbytes: two codes in a byte, the first one in the upper bits; blocks of 64 weights in one dimension."""
    table = torch.linspace(-1, 1, 16).sign() * torch.linspace(-1, 1, 16).abs() ** 1.5
    blocks = weight.reshape(-1, 64)
    scales = largest = blocks.abs().amax(1)
    state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": [*weight.shape]}
    parts = {".quant_map": table}
    if is_nested:
        nested, offset = torch.linspace(-1, 1, 256), float(largest.mean())
        groups = torch.arange(len(largest)) // 32
        tops = torch.stack([(largest[groups == group] - offset).abs().max() for group in groups.unique()])
        codes = nearest((largest - offset) / tops[groups], nested)
        scales, largest = nested[codes] * tops[groups] + offset, codes.to(torch.uint8)
        state |= {"nested_blocksize": 32, "nested_offset": offset, "nested_dtype": "float32"}
        parts |= {".nested_absmax": tops, ".nested_quant_map": nested}
    codes = nearest(blocks / scales[:, None], table)
    packed = codes.flatten().to(torch.uint8)
    packed = (packed[::2] << 4 | packed[1::2]).reshape(-1, 1)
    text = torch.tensor([*json.dumps(state).encode()], dtype=torch.uint8)
    parts |= {"": packed, ".absmax": largest, f".quant_state.bitsandbytes__{kind}": text}
    return parts, (table[codes] * scales[:, None]).reshape(weight.shape)


def of_rows(weight: Tensor, form: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """bitsandbytes in 8 bits; names that begin with "/" are those of the module's tensors."""
    largest = weight.abs().amax(1)
    codes = (weight / largest[:, None] * 127).round().to(torch.int8)
    parts = {"": codes, "/SCB": largest, "/weight_format": torch.tensor(form, dtype=torch.uint8)}
    return parts, codes.float() * largest[:, None] / 127


Form = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]
_FLOAT_WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
_COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": _FLOAT_WEIGHTS}},
}
_INTEGERS = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
READ: Mapping[str, tuple[Form, Mapping[str, Any] | None]] = {
    "compressed-tensors W8A8": (
        lambda weight: integers(weight),
        {
            **_COMPRESSED,
            "format": "int-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": _INTEGERS}},
        },
    ),
    "ModelOpt FP8": (per_tensor, {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "ModelOpt FP8, without a word in config.json": (per_tensor, None),
    "compressed-tensors float-quantized": (per_feature, _COMPRESSED),
    "fbgemm FP8": (per_feature, {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}),
    "compressed-tensors in blocks": (
        lambda weight: per_block(weight, "_scale"),
        {
            **_COMPRESSED,
            "config_groups": {
                "group_0": {"targets": ["Linear"], "weights": {**_FLOAT_WEIGHTS, "block_structure": [BLOCK, BLOCK]}}
            },
        },
    ),
    "ModelOpt NVFP4": (partial(four_bit_floats, is_divided=False), {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "compressed-tensors NVFP4": (
        partial(four_bit_floats, is_divided=True),
        {**_COMPRESSED, "format": "nvfp4-pack-quantized"},
    ),
    "bitsandbytes NF4": (
        lambda weight: of_table(weight, "nf4", is_nested=True),
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    ),
    "bitsandbytes FP4": (
        lambda weight: of_table(weight, "fp4", is_nested=False),
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
    ),
    "bitsandbytes INT8": (of_rows, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "DeepSeek FP8": (per_block, {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}),
}


def write(directory: Path, form: Callable[[Tensor], Any], config: Mapping[str, Any] | None) -> Any:
    """Write a checkpoint, and return the model with the weights that it represents."""
    model = make()
    model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    stored, state = {}, {}
    for name, weight in load_file(directory / "model.safetensors").items():
        stored[name] = state[name] = weight
        if ".layers." in name and weight.ndim == 2:
            parts, state[name] = form(weight)
            del stored[name]
            module = name.removesuffix("weight")
            for suffix, part in parts.items():
                stored[module + suffix[1:] if suffix.startswith("/") else name + suffix] = part.contiguous()
            stored[f"{name.removesuffix('weight')}input_scale"] = torch.tensor(1.0)
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    if config is not None:
        settings = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({**settings, "quantization_config": config}))
    reference = copy.deepcopy(model)
    reference.load_state_dict(state, strict=False)
    return reference


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits
    return found


@pytest.mark.parametrize("verify", [True, False], ids=["loaded", "by reference"])
@pytest.mark.parametrize("name", READ)
def test_weights_with_scales(tmp_path: Path, name: str, verify: bool) -> None:
    reference = write(tmp_path / "checkpoint", *READ[name])
    fxonnx.huggingface.export(tmp_path / "checkpoint", tmp_path / "out", task="text-generation", verify=verify)
    assert "quantization_config" not in (tmp_path / "out" / "config.json").read_text()
    found = logits(fxonnx.huggingface.load(tmp_path / "out"))
    torch.testing.assert_close(found, logits(reference), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", READ)
def test_genai(tmp_path: Path, name: str) -> None:
    """Its comparison refers to the model that is loaded, which has the same weights."""
    from fxonnx._transformers.language_models import load_language_model

    reference = write(tmp_path / "checkpoint", *READ[name])
    loaded = load_language_model(tmp_path / "checkpoint", None, torch.float32, False, None, lambda _: None)
    torch.testing.assert_close(logits(loaded.model), logits(reference), atol=1e-5, rtol=1e-4)
    fxonnx.genai.export(tmp_path / "checkpoint", tmp_path / "out", precision="int4")


def integers(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 127
    codes = (weight / scale).round().to(torch.int8)
    return {"": codes, "_scale": scale}, codes * scale


def smoothed(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    parts, value = four_bit_floats(weight, is_divided=False)
    return {**parts, "/pre_quant_scale": torch.full((weight.shape[1],), 2.0)}, value


def cut(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    parts, value = of_table(weight, "nf4", is_nested=False)
    return {**parts, ".absmax": parts[".absmax"][:1]}, value


def without_state(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    parts, value = of_table(weight, "nf4", is_nested=False)
    return {**parts, ".quant_state.bitsandbytes__nf4": torch.tensor([*b"{}"], dtype=torch.uint8)}, value


def unknown_blocks(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    return {"": weight.to(CODES), "_scale": torch.ones(7, 3)}, weight


REFUSED: Mapping[str, tuple[Any, Mapping[str, Any] | None, str]] = {
    "ModelOpt INT8": (integers, None, r"not supported: .*weight_scale|is torch\.int8 .*, expected torch\.float32"),
    "NVFP4 with factors of the input": (smoothed, None, "cannot be read: it has a pre_quant_scale"),
    "NF4 with too few scales": (cut, None, "its parts in bitsandbytes in 4 bits do not fit each other"),
    "NF4 without a shape": (without_state, None, "weights of bitsandbytes without their shape: 'shape'"),
    "bitsandbytes in columns": (partial(of_rows, form=2), None, "its weight_format is not 0, rows"),
    "scales that do not fit": (unknown_blocks, None, r"(read|written): it has \d scales for \d+ weights"),
    "scales in bytes": (of_bytes, None, r"its scales are torch\.uint8"),
    "blocks of an unknown size": (per_block, None, "in blocks of an unknown size"),
    "weights without scales": (without_some, None, "has no scales for .*, but for other weights"),
    "an unknown method": (lambda weight: ({"": weight}, weight), {"quant_method": "new"}, "quantized by new|new"),
    "blocks of no size": (
        per_block,
        {"quant_method": "fp8", "weight_block_size": [0, 0]},
        "no valid weight_block_size",
    ),
    "blocks that are no list": (
        per_block,
        {"quant_method": "fp8", "weight_block_size": "x"},
        "no valid weight_block_size",
    ),
    "int-quantized floats": (integers, {**_COMPRESSED, "format": "int-quantized"}, "type 'float', strategy 'channel'"),
    "marlin-24": (integers, {**_COMPRESSED, "format": "marlin-24"}, "not 'pack-quantized' or 'int-quantized'"),
    "quanto": (integers, {"quant_method": "quanto", "weights": "int8"}, "quanto"),
    "bitsandbytes": (integers, {"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes|not supported"),
}


@pytest.mark.parametrize("exported", ["genai", "huggingface", "huggingface by reference"])
@pytest.mark.parametrize("name", REFUSED)
def test_other_forms_are_one_error(tmp_path: Path, name: str, exported: str) -> None:
    form, config, message = REFUSED[name]
    write(tmp_path / "checkpoint", form, config)
    export: Any = fxonnx.genai.export
    if exported != "genai":
        verify = exported == "huggingface"
        export = partial(fxonnx.huggingface.export, task="text-generation", verify=verify)
    with pytest.raises((ArgumentError, SaveError), match=message):
        export(tmp_path / "checkpoint", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_integers_of_8_bits_are_kept(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint", *READ["compressed-tensors W8A8"])
    fxonnx.genai.export(tmp_path / "checkpoint", tmp_path / "out")
    model = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    stored = load_file(tmp_path / "checkpoint" / "model.safetensors")
    codes = [tensor for tensor in stored.values() if tensor.dtype == torch.int8]
    bits = [each.i for node in model.graph.node for each in node.attribute if each.name == "bits"]
    assert bits == [8] * sum(node.op_type == "MatMulNBits" for node in model.graph.node)
    size = sum(path.stat().st_size for path in (tmp_path / "out").glob("model.onnx*"))
    assert sum(map(torch.Tensor.numel, codes)) < size < 0.7 * 4 * sum(each.numel() for each in make().parameters())


def test_larger_weights_are_reported(tmp_path: Path) -> None:
    """With their bytes, which can be kept small by rounding the weights again."""
    write(tmp_path / "checkpoint", *READ["ModelOpt NVFP4"])
    message = r"in NVFP4 are dequantized, .*: 0\.2 MiB become 1\.1 MiB of torch\.float32, unless .* 4 or 8 bits"
    with pytest.warns(UserWarning, match=message):
        fxonnx.genai.export(tmp_path / "checkpoint", tmp_path / "out", precision="int4", verify=False)


def test_modules_of_bitsandbytes(tmp_path: Path) -> None:
    """A model that was loaded by the library, which need not be installed here."""
    model = make()
    kind = type("Linear4bit", (torch.nn.Linear,), {"__module__": "bitsandbytes.nn.modules"})
    model.lm_head.__class__ = kind
    message = r"model: it has weights that bitsandbytes has quantized, in a Linear4bit\nhint: .*save_pretrained .* model\.dequantize\(\)"
    for export, options in (
        (fxonnx.genai.export, {"tokenizer": make_tokenizer()}),
        (fxonnx.huggingface.export, {"processor": make_tokenizer()}),
    ):
        with pytest.raises(ArgumentError, match=message):
            export(model, tmp_path / "out", **options)  # type: ignore[operator]


@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "IntxWeightOnlyConfig"])
def test_weights_of_torchao(tmp_path: Path, config: str) -> None:
    """They are compared without the rounding of activations, which ONNX Runtime does by itself and torchao does not."""
    quantization = pytest.importorskip("torchao.quantization")
    model = make()
    quantization.quantize_(model, getattr(quantization, config)())
    fxonnx.huggingface.export(model, tmp_path / "hf", processor=make_tokenizer())
    fxonnx.genai.export(model, tmp_path / "genai", tokenizer=make_tokenizer())
    assert (tmp_path / "genai" / "model.onnx").stat().st_size < 1e6


def test_weights_of_another_shape(tmp_path: Path) -> None:
    make().save_pretrained(tmp_path / "checkpoint")
    stored = load_file(tmp_path / "checkpoint" / "model.safetensors")
    stored["model.norm.weight"] = torch.ones(64)
    save_file(stored, tmp_path / "checkpoint" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArgumentError, match=r"model\.norm\.weight has the shape \[64\], not \[128\]"):
        fxonnx.huggingface.export(tmp_path / "checkpoint", tmp_path / "out", task="text-generation")


def test_a_model_whose_quantization_transformers_has_ignored(tmp_path: Path) -> None:
    model = make()
    model.config.quantization_config = {"quant_method": "modelopt", "quant_algo": "FP8"}
    message = r"quantized by modelopt, which transformers has loaded as they are stored\nhint: pass the directory"
    with pytest.raises(ArgumentError, match=message):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer())
    with pytest.raises(ArgumentError, match=message):
        fxonnx.huggingface.export(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
