"""Checkpoints of GPTQ and AWQ in onnxruntime-genai: their integers are the model's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import fxonnx.genai
from fxonnx import ArgumentError

from ..test_packed_checkpoints import FORMATS, codes_of, random_weight
from .small_models import make_model, make_tokenizer

pytest.importorskip("onnxruntime_genai")


def write(directory: Path, name: str) -> list[torch.Tensor]:
    """Write a quantized checkpoint and return the codes of all layers."""
    pack, bits, group, symmetric, config = FORMATS[name]
    model = make_model("llama")
    model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    tensors, codes = load_file(directory / "model.safetensors"), []
    for index, (path, module) in enumerate(model.model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            quantized = random_weight(
                module.in_features, module.out_features, bits, group, symmetric=symmetric, seed=index
            )
            codes.append(quantized[0].t())
            del tensors[f"model.{path}.weight"]
            parts = pack(quantized, bits, group)
            tensors |= {f"model.{path}.{part}": tensor.contiguous() for part, tensor in parts.items()}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    settings = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**settings, "quantization_config": config}))
    return codes


def _permuted(name: str, tensor: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return tensor[order] if name.endswith("g_idx") else tensor


@pytest.mark.parametrize("name", ["gptq_symmetric", "gptq_symmetric with desc_act", "awq", "compressed_bytes"])
def test_quantized_checkpoints(name: str, tmp_path: Path) -> None:
    codes = write(tmp_path / "checkpoint", name.partition(" ")[0])
    if name.endswith("desc_act"):
        file = tmp_path / "checkpoint" / "model.safetensors"
        tensors = load_file(file)
        order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
        save_file({name: _permuted(name, tensor, order) for name, tensor in tensors.items()}, file, {"format": "pt"})
    # Random integers of 8 bits are weights so large that rounded activations decide about the tokens.
    fxonnx.genai.export(tmp_path / "checkpoint", tmp_path / "out", verify=name != "compressed_bytes")
    written = torch.cat(
        [torch.from_numpy(each.astype("int64")).flatten() for each in codes_of(tmp_path / "out" / "model.onnx")]
    )
    assert torch.equal(written.sort().values, torch.cat([each.flatten() for each in codes]).sort().values)


def test_invalid_options(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint", "gptq")
    with pytest.raises(ArgumentError, match="adapters: the weights of the checkpoint are quantized"):
        fxonnx.genai.export(tmp_path / "checkpoint", tmp_path / "out", adapters={"a": tmp_path})
    file = tmp_path / "checkpoint" / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.down_proj.g_idx"
    tensors[name] = tensors[name] * 0
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ArgumentError, match=f"'{name}' in .*: groups are not blocks of input features"):
        fxonnx.genai.export(tmp_path / "checkpoint", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    # The dequantized weights may be rounded again.
    fxonnx.genai.export(tmp_path / "checkpoint", tmp_path / "out", quantize="int8")
    del tensors[name.replace("g_idx", "scales")]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ArgumentError, match=r"model: 'model.layers.1.mlp.down_proj.weight' in .* cannot be read: "):
        fxonnx.genai.export(tmp_path / "checkpoint", tmp_path / "again")
