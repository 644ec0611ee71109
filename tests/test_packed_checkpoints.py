"""Checkpoints of GPTQ, AWQ and compressed-tensors: the model has their integers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import load_file, save_file
from torch import nn

import fxonnx
from fxonnx import ArgumentError, QuantizeConfig, SaveError

X = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0))
SHAPES = (64, 48), (48, 32), (32, 16)
"""Input and output features of the layers; the last one is not quantized."""
Quantized = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Codes [in, out], zero points [groups, out] and scales [groups, out]."""


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(*shape) for shape in SHAPES])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def random_weight(rows: int, columns: int, bits: int, group: int, *, symmetric: bool, seed: int) -> Quantized:
    generator = torch.Generator().manual_seed(seed)
    groups = -(-rows // (group or rows))
    codes = torch.randint(0, 2**bits, (rows, columns), generator=generator)
    points = torch.randint(0, 2**bits, (groups, columns), generator=generator)
    if symmetric:
        points = torch.full_like(points, 2 ** (bits - 1))
    scales = (torch.rand(groups, columns, generator=generator) * 0.1 + 0.01).half()
    return codes, points, scales


def weight_of(quantized: Quantized, group: int) -> torch.Tensor:
    """The weight [out, in] that the integers represent."""
    codes, points, scales = quantized
    index = torch.arange(len(codes)) // (group or len(codes))
    return ((codes - points[index]) * scales[index].float()).t().contiguous()


def pack_rows(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack consecutive rows into the rows of an int32 tensor, the first one in the lowest bits."""
    count = 32 // bits
    packed = np.zeros((-(-len(codes) // count), codes.shape[1]), dtype=np.uint32)
    for row in range(len(codes)):
        packed[row // count] |= codes[row].numpy().astype(np.uint32) << np.uint32(bits * (row % count))
    return torch.from_numpy(packed.view(np.int32))


def pack_awq(codes: torch.Tensor) -> torch.Tensor:
    """Pack columns as AWQ does: 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits on."""
    packed = np.zeros((len(codes), codes.shape[1] // 8), dtype=np.uint32)
    for word in range(packed.shape[1]):
        for position, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            packed[:, word] |= codes[:, word * 8 + column].numpy().astype(np.uint32) << np.uint32(4 * position)
    return torch.from_numpy(packed.view(np.int32))


def gptq(quantized: Quantized, bits: int, group: int, *, offset: int = 1) -> dict[str, torch.Tensor]:
    codes, points, scales = quantized
    stored = (points - offset) % 2**bits
    return {
        "qweight": pack_rows(codes, bits),
        "qzeros": pack_rows(stored.t(), bits).t().contiguous(),
        "scales": scales,
        "g_idx": (torch.arange(len(codes)) // (group or len(codes))).int(),
    }


def gptq_v2(quantized: Quantized, bits: int, group: int) -> dict[str, torch.Tensor]:
    return gptq(quantized, bits, group, offset=0)


def awq(quantized: Quantized, bits: int, group: int) -> dict[str, torch.Tensor]:
    codes, points, scales = quantized
    return {"qweight": pack_awq(codes), "qzeros": pack_awq(points), "scales": scales}


def compressed(quantized: Quantized, bits: int, group: int) -> dict[str, torch.Tensor]:
    codes, points, scales = quantized
    tensors = {
        "weight_packed": pack_rows(codes, bits).t().contiguous(),
        "weight_scale": scales.t().contiguous(),
        "weight_shape": torch.tensor(codes.t().shape),
    }
    if not bool((points == 2 ** (bits - 1)).all()):
        tensors["weight_zero_point"] = pack_rows(points.t(), bits)
    return tensors


def compressed_bytes(quantized: Quantized, bits: int, group: int) -> dict[str, torch.Tensor]:
    codes, points, scales = quantized
    tensors = {"weight": (codes - 128).t().to(torch.int8).contiguous(), "weight_scale": scales.t().contiguous()}
    if not bool((points == 128).all()):
        tensors["weight_zero_point"] = (points - 128).t().to(torch.int8).contiguous()
    return tensors


def bytes_config(group: int, *, symmetric: bool) -> dict[str, Any]:
    """W8A8: the activations are quantized at run time."""
    config = compressed_config(8, group, symmetric=symmetric)
    config["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "type": "int", "dynamic": True}
    return {**config, "format": "int-quantized"}


def compressed_config(bits: int, group: int, *, symmetric: bool) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group" if group else "channel"}
    weights["group_size"] = group or None
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}


Pack = Callable[[Quantized, int, int], dict[str, torch.Tensor]]
FORMATS: Mapping[str, tuple[Pack, int, int, bool, dict[str, Any]]] = {
    "gptq": (gptq, 4, 32, False, {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}),
    "gptq_symmetric": (gptq, 4, 32, True, {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}),
    "gptq_v2": (
        *(gptq_v2, 4, 16, False),
        {"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": False, "checkpoint_format": "gptq_v2"},
    ),
    "gptq_columns": (gptq, 4, 0, True, {"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": True}),
    "gptq_8_bits": (gptq, 8, 32, False, {"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": False}),
    "awq": (awq, 4, 32, False, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}),
    "compressed": (compressed, 4, 32, True, compressed_config(4, 32, symmetric=True)),
    "compressed_points": (compressed, 4, 32, False, compressed_config(4, 32, symmetric=False)),
    "compressed_columns": (compressed, 8, 0, True, compressed_config(8, 0, symmetric=True)),
    "compressed_bytes": (compressed_bytes, 8, 0, True, bytes_config(0, symmetric=True)),
    "compressed_bytes_points": (compressed_bytes, 8, 32, False, bytes_config(32, symmetric=False)),
}


def write_checkpoint(directory: Path, name: str) -> tuple[nn.Module, list[Quantized]]:
    """Write a checkpoint in two files; return the model with dequantized weights, and the integers."""
    pack, bits, group, symmetric, config = FORMATS[name]
    model = Layers()
    weights = [
        random_weight(*shape, bits, group, symmetric=symmetric, seed=seed) for seed, shape in enumerate(SHAPES[:2])
    ]
    tensors = dict(model.state_dict())
    for index, quantized in enumerate(weights):
        del tensors[f"layers.{index}.weight"]
        tensors |= {f"layers.{index}.{part}": tensor for part, tensor in pack(quantized, bits, group).items()}
        model.layers[index].weight.data = weight_of(quantized, group)
    names = sorted(tensors)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({each: tensors[each].contiguous() for each in part}, directory / f"model-{number}.safetensors")
    (directory / "config.json").write_text(json.dumps({"quantization_config": config}))
    return model.eval(), weights


def codes_of(path: Path) -> list[np.ndarray]:
    """The unsigned codes [out, in] of the weights in a file."""
    graph = onnx.load(path).graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    found = []
    for node in graph.node:
        if node.op_type == "DequantizeLinear":
            array = numpy_helper.to_array(tensors[node.input[0]])
            signed = tensors[node.input[0]].data_type in (onnx.TensorProto.INT4, onnx.TensorProto.INT8)
            bits = 4 if tensors[node.input[0]].data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4) else 8
            found.append((array.astype(int) + (2 ** (bits - 1) if signed else 0)).T)
        elif node.op_type == "MatMulNBits":
            attributes = {one.name: one.i for one in node.attribute}
            array = numpy_helper.to_array(tensors[node.input[1]])
            if attributes["bits"] == 4:
                array = np.stack([array & 15, array >> 4], axis=-1)
            found.append(array.reshape(attributes["N"], -1)[:, : attributes["K"]])
    return found


@pytest.mark.parametrize("target", [None, "onnxruntime-genai"])
@pytest.mark.parametrize("name", FORMATS)
def test_the_model_has_the_integers_of_the_checkpoint(name: str, target: Any, tmp_path: Path) -> None:
    model, weights = write_checkpoint(tmp_path, name)
    config = replace(QuantizeConfig.from_checkpoint(tmp_path), accuracy_level=1)
    assert config.include == ("layers.0", "layers.1")
    program = fxonnx.export(Layers().eval(), (X,), quantize=config, target=target, input_names=["x"])
    program.save(tmp_path / "model.onnx", weights=tmp_path)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": X.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), model(X))
    for codes, quantized in zip(codes_of(tmp_path / "model.onnx"), weights, strict=True):
        np.testing.assert_array_equal(codes, quantized[0].t().numpy())


def test_models_that_are_not_quantized(tmp_path: Path) -> None:
    model, _ = write_checkpoint(tmp_path, "awq")
    program = fxonnx.export(Layers().eval(), (X,), input_names=["x"])
    program.save(tmp_path / "model.onnx", weights=tmp_path)
    (found,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"x": X.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), model(X))


def test_the_file_is_as_small_as_the_checkpoint(tmp_path: Path) -> None:
    rows, columns = 1024, 512
    quantized = random_weight(rows, columns, 4, 128, symmetric=False, seed=0)
    save_file({f"0.{name}": value for name, value in gptq(quantized, 4, 128).items()}, tmp_path / "a.safetensors")
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 128, "sym": False}))
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(rows, columns, bias=False)).eval()
    config = QuantizeConfig.from_checkpoint(tmp_path)
    for target in (None, "onnxruntime-genai"):
        program = fxonnx.export(model, (torch.ones(1, 2, rows, device="meta"),), quantize=config, target=target)
        program.save(tmp_path / "model.onnx", weights=tmp_path)
        assert (tmp_path / "model.onnx").stat().st_size <= 1.1 * (tmp_path / "a.safetensors").stat().st_size


def save_with(directory: Path, changed: Mapping[str, torch.Tensor | None], config: dict[str, Any]) -> None:
    """Save a program with a checkpoint of GPTQ, some of whose tensors are changed or missing."""
    write_checkpoint(directory, "gptq")
    tensors = {name: value for part in directory.glob("*.safetensors") for name, value in load_file(part).items()}
    for part in directory.glob("*.safetensors"):
        part.unlink()
    tensors |= {name: value for name, value in changed.items() if value is not None}
    kept = {name: value for name, value in tensors.items() if changed.get(name, value) is not None}
    save_file(kept, directory / "model.safetensors")
    program = fxonnx.export(Layers().eval(), (X,), quantize=QuantizeConfig(**config))
    program.save(directory / "model.onnx", weights=directory)


ORDER = torch.arange(64, dtype=torch.int32) % 2
CONFIG: dict[str, Any] = {"block_size": 32, "symmetric": False, "include": ["layers.0", "layers.1"]}


@pytest.mark.parametrize(
    ("changed", "config", "match"),
    [
        ({"layers.0.g_idx": ORDER}, CONFIG, r"'layers.0.weight' in .*: its groups are not consecutive"),
        ({"layers.0.scales": None}, CONFIG, "the checkpoint has no layers.0.scales"),
        ({"layers.0.scales": torch.ones(1, 48)}, CONFIG, r"scales of shape \[48, 1\], expected \[48, 2\]"),
        ({}, {**CONFIG, "symmetric": True}, "has 4 bits in blocks of 32 with zero points, the model has 4 bits in"),
        (
            {},
            {**CONFIG, "block_size": 64},
            "the model has 4 bits in blocks of 64; QuantizeConfig.from_checkpoint",
        ),
        ({}, {**CONFIG, "dtype": "int8"}, "the model has 8 bits in blocks of 32"),
    ],
)
def test_invalid_weights(changed: Any, config: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(SaveError, match=f"initializer 'layers.0.weight::.* cannot be written: .*{match}"):
        save_with(tmp_path, changed, config)
    assert not (tmp_path / "model.onnx").exists()


GROUPS = compressed_config(4, 32, symmetric=True)["config_groups"]


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({}, "has no weights that are quantized by gptq, awq, compressed-tensors\nhint: "),
        ({"quant_method": "fp8"}, "has no weights that are quantized by"),
        ({"quant_method": "gptq", "bits": 3}, "config.json has weights of 3 bits; 4 and 8 are supported"),
        ({"quant_method": "gptq"}, "has weights of gptq in a format that is not supported: 'bits'"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({"quant_method": "awq", "version": "gemv"}, "version is 'gemv' with 4 bits"),
        (
            {"quant_method": "compressed-tensors", "format": "marlin-24"},
            "format is 'marlin-24', not 'pack-quantized' or",
        ),
        ({**compressed_config(4, 0, symmetric=True), "format": "int-quantized"}, "4 bits in a byte"),
        (
            {
                **compressed_config(4, 32, symmetric=True),
                "config_groups": {
                    "a": GROUPS["group_0"],
                    "b": compressed_config(8, 0, symmetric=True)["config_groups"]["group_0"],
                },
            },
            "2 formats of weights in one checkpoint",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"a": {"weights": {"num_bits": 4, "type": "float"}}},
            },
            "type 'float', strategy None",
        ),
    ],
)
def test_invalid_configurations(config: dict[str, Any], match: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    with pytest.raises(ArgumentError, match=f"directory: .*{match}"):
        QuantizeConfig.from_checkpoint(tmp_path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ArgumentError, match=r"directory: .*config.json is not a JSON file"):
        QuantizeConfig.from_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": FORMATS["awq"][-1]}))
    (tmp_path / "model.safetensors").write_bytes(b"no header")
    with pytest.raises(ArgumentError, match=r"directory: .*model.safetensors is not a safetensors file"):
        QuantizeConfig.from_checkpoint(tmp_path)


class Joined(nn.Module):
    """One product with the weights of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 48, bias=False), nn.Linear(64, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, torch.cat([self.first.weight, self.second.weight]))


@pytest.mark.parametrize("target", [None, "onnxruntime-genai"])
def test_weights_that_are_joined(target: Any, tmp_path: Path) -> None:
    tensors, codes = {}, []
    for seed, (name, features) in enumerate((("first", 48), ("second", 32))):
        quantized = random_weight(64, features, 4, 32, symmetric=False, seed=seed)
        codes.append(quantized[0].t())
        tensors |= {f"{name}.{part}": tensor for part, tensor in awq(quantized, 4, 32).items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": FORMATS["awq"][-1]}))
    config = QuantizeConfig.from_checkpoint(tmp_path)
    program = fxonnx.export(Joined().eval(), (X,), quantize=config, target=target)
    program.save(tmp_path / "model.onnx", weights=tmp_path)
    (found,) = codes_of(tmp_path / "model.onnx")
    np.testing.assert_array_equal(found, torch.cat(codes).numpy())


def test_layers_without_integers_are_rounded_with_a_warning(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "compressed")
    config = QuantizeConfig(block_size=32)
    program = fxonnx.export(Layers().eval(), (X,), quantize=config)
    with pytest.warns(
        UserWarning, match=r"'layers.2.weight': rounded to nearest, since the checkpoint has no integers"
    ):
        program.save(tmp_path / "model.onnx", weights=tmp_path)


class Siblings(nn.Module):
    """Three layers with one input, which the target for language models joins where it can."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(64, size, bias=False) for size in (48, 32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.first(x), self.second(x).sigmoid() * self.third(x)], -1)


def write_permuted(directory: Path, groups: torch.Tensor, bits: int = 4) -> dict[str, torch.Tensor]:
    """Write a checkpoint of ``Siblings`` whose input features belong to given groups; return the weights."""
    tensors, state = {}, {}
    for seed, (name, size) in enumerate((("first", 48), ("second", 32), ("third", 32))):
        codes, points, scales = random_weight(64, size, bits, 32, symmetric=False, seed=seed)
        parts = gptq((codes, points, scales), bits, 32) | {"g_idx": groups.int()}
        tensors |= {f"{name}.{part}": tensor.contiguous() for part, tensor in parts.items()}
        state[f"{name}.weight"] = ((codes - points[groups]) * scales[groups].float()).t()
    save_file(tensors, directory / "model.safetensors")
    config = {**FORMATS["gptq"][-1], "bits": bits, "desc_act": True}
    (directory / "config.json").write_text(json.dumps({"quantization_config": config}))
    return state


PERMUTED = torch.randperm(64, generator=torch.Generator().manual_seed(0)) // 32


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("target", [None, "onnxruntime-genai"])
def test_groups_that_are_not_consecutive(target: Any, bits: int, tmp_path: Path) -> None:
    """The graph permutes the inputs, and the file has the codes in the order of their groups."""
    state = write_permuted(tmp_path, PERMUTED, bits)
    config = replace(QuantizeConfig.from_checkpoint(tmp_path), accuracy_level=1)
    assert config.permuted == config.include == ("first", "second", "third")
    model = Siblings().eval()
    model.load_state_dict(state)
    program = fxonnx.export(model, (X,), quantize=config, target=target, dynamic_shapes=({0: "batch"},))
    program.save(tmp_path / "model.onnx", weights=tmp_path)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", options)
    for x in (X, X[:1]):
        (found,) = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model(x).detach(), atol=1e-4, rtol=1e-4)
    program.verify()


@pytest.mark.parametrize("target", [None, "onnxruntime-genai"])
def test_joined_weights_with_groups_in_different_orders(target: Any, tmp_path: Path) -> None:
    state = write_permuted(tmp_path, PERMUTED)
    config = replace(QuantizeConfig.from_checkpoint(tmp_path), include=("first", "second"))
    model = Joined().eval()
    model.load_state_dict({name: state[name] for name in ("first.weight", "second.weight")})
    program = fxonnx.export(Joined().eval(), (X,), quantize=config, target=target)
    program.save(tmp_path / "model.onnx", weights=tmp_path)
    found = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"x": X.numpy()})[0]
    expected = model(X).detach()
    # The activations are rounded to 8 bits.
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=0.02 * float(expected.abs().max()), rtol=0)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "second.g_idx": PERMUTED.flip(0).int()}, tmp_path / "model.safetensors")
    with pytest.raises(SaveError, match="the checkpoint has the input features of joined weights in different orders"):
        program.save(tmp_path / "other.onnx", weights=tmp_path)


def test_dequantized_weights_of_any_groups(tmp_path: Path) -> None:
    groups = torch.arange(64) % 3 % 2
    state = write_permuted(tmp_path, groups)
    with pytest.raises(
        ArgumentError, match=r"'first.g_idx' in .*: groups are not blocks of input features .*\nhint: pass quantize="
    ):
        QuantizeConfig.from_checkpoint(tmp_path)
    model = Siblings().eval()
    program = fxonnx.export(model, (X,))
    program.save(tmp_path / "model.onnx", weights=tmp_path)
    (found,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"x": X.numpy()})
    model.load_state_dict(state)
    torch.testing.assert_close(torch.from_numpy(found), model(X).detach())
    config = QuantizeConfig(block_size=32, symmetric=False, permuted=("first",))
    with pytest.raises(SaveError, match="its groups are not blocks of input features in any order"):
        fxonnx.export(model, (X,), quantize=config).save(tmp_path / "model.onnx", weights=tmp_path)
