"""Common complaints about exporters, as minimal reproductions."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import fxonnx

from .functions import Function
from .models.torchvision_shim import import_torchvision
from .saved import run_from_file


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("c", torch.zeros(1, 8, 4))

    def forward(self, x: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        self.c.index_copy_(1, pos, x)
        return self.c.sum(1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Embedding(100, 16)
        self.h = nn.Linear(16, 100, bias=False)
        self.h.weight = self.e.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.h(self.e(ids))


class Stored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.randn(16, 24).to(torch.float8_e4m3fn))
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.w.to(x.dtype) * self.scale)


class Biased(nn.Module):
    def forward(self, x: torch.Tensor, bias: float = 0.1) -> torch.Tensor:
        return x + bias


def test_state_is_not_frozen_silently() -> None:
    given = (torch.ones(1, 1, 4), torch.tensor([2]))
    with pytest.warns(UserWarning, match=r"forward writes to 'c'(?s:.*)'c' at .*test_complaints\.py:\d+"):
        fxonnx.export(Cache().eval(), given)
    session = fxonnx.export(Cache().eval(), given, state="io").stateful_session()
    session(*given)
    torch.testing.assert_close(session(given[0], torch.tensor([3]))[0], torch.full((1, 4), 2.0))


@pytest.mark.parametrize("shape", [(5,), (2, 5)])
def test_tied_weights_are_stored_once(shape: tuple[int, ...]) -> None:
    program = fxonnx.export(Tied().eval(), (torch.randint(0, 100, shape),), verify=True)
    large = [value for value in program.model.graph.initializers.values() if value.const_value.nbytes > 64]
    assert [value.name for value in large] == ["h.weight"]


@pytest.mark.parametrize("opset", [11, 12, 13, 17])
def test_the_opset_is_the_requested_one(opset: int, tmp_path: Path) -> None:
    model = Function(lambda x: torch.nn.functional.pad(x.chunk(2, 1)[0], (1, 1)))
    fxonnx.export(model.eval(), (torch.rand(2, 4),), tmp_path / "m.onnx", opset_version=opset, verify=True)
    assert onnx.load(tmp_path / "m.onnx").opset_import[0].version == opset


def test_float8_weights_stay_float8(tmp_path: Path) -> None:
    program = fxonnx.export(Stored().eval(), (torch.rand(3, 16),), verify=True)
    weights = program.model.graph.initializers
    assert weights["w"].dtype == ir.DataType.FLOAT8E4M3FN
    assert sum(value.const_value.nbytes for value in weights.values()) < 2 * 16 * 24


def test_a_renamed_input_keeps_its_shape() -> None:
    program = fxonnx.export(
        nn.ReLU().eval(), (torch.rand(2, 3),), input_names=["img"], dynamic_shapes={"img": {0: "batch"}}
    )
    assert program.model.graph.inputs[0].shape == ["batch", 3]


def test_a_cache_is_an_input_without_conversion() -> None:
    import_torchvision()
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_attention_heads=2, num_hidden_layers=2, vocab_size=32
    )
    cache = DynamicCache([(torch.rand(2, 2, 3, 8), torch.rand(2, 2, 3, 8)) for _ in range(2)])
    program = fxonnx.export(
        LlamaForCausalLM(config).eval(),
        kwargs={"input_ids": torch.randint(0, 32, (2, 1)), "past_key_values": cache},
        dynamic_shapes={"input_ids": {0: "batch"}, "past_key_values.*": {0: "batch", 2: "past"}},
        verify=True,
    )
    assert program.model.graph.inputs[1].name == "past_key_values.0.key"


def test_a_decoder_with_a_cache_has_no_limits() -> None:
    """No warning at its export; eager mode takes masks that are longer than the cache and the tokens as well."""
    import_torchvision()
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_attention_heads=2, num_hidden_layers=1, vocab_size=32
    )
    model = LlamaForCausalLM(config).eval()

    def inputs(tokens: int, past: int, total: int) -> dict[str, Any]:
        cache = DynamicCache([(torch.rand(2, 2, past, 8), torch.rand(2, 2, past, 8))])
        mask = (torch.arange(total) % 3 > 0).long().expand(2, total)
        return {"input_ids": torch.randint(0, 32, (2, tokens)), "attention_mask": mask, "past_key_values": cache}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = fxonnx.export(
            model,
            kwargs=inputs(2, 3, 5),
            dynamic_shapes={
                "input_ids": {0: "batch", 1: "tokens"},
                "attention_mask": {0: "batch", 1: "total"},
                "past_key_values.*": {0: "batch", 2: "past"},
            },
        )
    run_from_file(program)
    for sizes in ((2, 3, 5), (1, 7, 8), (4, 2, 9)):
        given = inputs(*sizes)
        found = program(**copy.deepcopy(given))[0]
        torch.testing.assert_close(found, model(**given).logits)


def test_models_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = nn.Linear(1000, 1000)
    program = fxonnx.export(model.eval(), (torch.rand(2, 1000),))
    assert program.model.graph.initializers["weight"].shape == [1000, 1000]


def test_numbers_are_frozen_arguments_or_inputs() -> None:
    x = torch.rand(2)
    assert fxonnx.export(Biased().eval(), (x, 0.1)).record.frozen_arguments == {"bias": 0.1}
    program = fxonnx.export(Biased().eval(), (x, 0.1), dynamic_scalars={"bias"}, verify=True)
    assert [value.name for value in program.model.graph.inputs] == ["x", "bias"]
    torch.testing.assert_close(program(x, 0.7)[0], x + 0.7)


def test_metadata_can_be_left_out() -> None:
    layers: list[Any] = [layer for _ in range(50) for layer in (nn.Linear(4, 4), nn.ReLU())]
    sizes = {}
    for level in ("full", "names", "none"):
        program = fxonnx.export(
            nn.Sequential(*layers).eval(), (torch.rand(1, 4),), options=fxonnx.ExportOptions(metadata=level)
        )
        sizes[level] = program.model_proto.ByteSize()
    assert sizes["none"] < sizes["names"] < sizes["full"]
    assert sizes["none"] < sizes["full"] / 2


def test_no_empty_external_data_for_a_small_model(tmp_path: Path) -> None:
    fxonnx.export(nn.Linear(8, 8).eval(), (torch.rand(1, 8),), tmp_path / "m.onnx", external_data=True)
    (tmp_path / "m.onnx.data").unlink(missing_ok=True)
    fxonnx.export(nn.Linear(8, 8).eval(), (torch.rand(1, 8),), tmp_path / "m.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    fxonnx.export(nn.Linear(2, 2).eval(), (torch.rand(1, 2),), tmp_path / "m.onnx", external_data=True)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
