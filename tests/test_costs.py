"""Operations and activations in the report: against torch's counter, and by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnxscript import ir
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import fxonnx
from fxonnx.diagnostics.costs import GraphCosts, ModelCosts

from .functions import Function


def costs_of(model: fxonnx.ONNXProgram | ir.Model | onnx.ModelProto) -> tuple[GraphCosts, Mapping[str, int]]:
    program = model if isinstance(model, fxonnx.ONNXProgram) else None
    loaded = program.model if program else ir.from_proto(model) if isinstance(model, onnx.ModelProto) else model
    costs = ModelCosts(loaded, program)
    return costs.of(loaded.graph), costs.sizes


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one.unflatten(-1, (2, 8)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


BATCH: dict[int, str] = {0: "batch"}
IMAGE, SEQUENCE = torch.rand(2, 4, 9, 7), torch.rand(2, 5, 16)
MODELS: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...], Any, dict[str, Any]]] = {
    "linear": (nn.Linear(16, 3), (SEQUENCE,), BATCH, {}),
    "linear of a matrix": (nn.Linear(16, 3), (SEQUENCE[0],), BATCH, {}),
    "linear in 4 bits": (nn.Linear(64, 8), (torch.rand(3, 64),), BATCH, {"quantize": "int4"}),
    "convolution": (nn.Conv2d(4, 6, 3, stride=2, padding=1), (IMAGE,), {0: "batch", 2: "height"}, {}),
    "grouped convolution": (nn.Conv1d(4, 8, 3, groups=2), (torch.rand(2, 4, 9),), None, {}),
    "transposed convolution": (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (IMAGE,), {3: "width"}, {}),
    "matrices": (Function(torch.matmul), (torch.rand(3, 4, 5), torch.rand(5, 2)), None, {}),
    "einsum": (Function(lambda x, y: torch.einsum("bij,bjk->bik", x, y)), (torch.rand(2, 3, 4), torch.rand(2, 4, 5)), None, {}),
    "attention": (Attention(), (SEQUENCE,), {0: "batch", 1: "length"}, {}),
    "attention, opset 23": (Attention(), (SEQUENCE,), {0: "batch", 1: "length"}, {"opset_version": 23}),
    "attention of the runtime": (Attention(), (SEQUENCE,), {0: "batch", 1: "length"}, {"target": "onnxruntime"}),
    "functions": (
        nn.Sequential(*(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(3))),
        (SEQUENCE,),
        {0: "batch", 1: "length"},
        {"options": fxonnx.ExportOptions(functions="repeated")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_operations_are_those_that_torch_counts(name: str) -> None:
    model, args, dims, options = MODELS[name]
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.train(mode=True)  # torch counts nothing in its fast path
            module.dropout.p = module.dropout1.p = module.dropout2.p = module.self_attn.dropout = 0.0
    # The other kernels of attention are not counted on the CPU.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(*args)
    model.eval()
    program = fxonnx.export(
        model, args, dynamic_shapes=None if dims is None else (dims, *(None for _ in args[1:])), **options
    )
    costs, sizes = costs_of(program)
    assert costs.total_flops == counter.get_total_flops() > 0
    assert costs.unknown == 0
    assert sizes == {dim: args[0].shape[axis] for axis, dim in (dims or {}).items()}


def test_recurrent_layers() -> None:
    """torch does not count them: the products of each step, with input and state."""
    layer = nn.LSTM(8, 16, num_layers=2, bidirectional=True).eval()
    costs, _ = costs_of(fxonnx.export(layer, (torch.rand(5, 3, 8),), dynamic_shapes=({0: "time"},)))
    weights = sum(parameter.numel() for name, parameter in layer.named_parameters() if name.startswith("weight"))
    assert costs.total_flops == 2 * 5 * 3 * weights


def test_activations_and_their_peak() -> None:
    """Views have no memory of their own, and keep the memory of their input alive; branches count as well."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]>
        main (float[n, 4] x, bool c) => (float[n, 4] z) <float[n, 4] a, float[4] v, float[4] w, float[n, 4] b> {
            a = Neg(x)
            v = Reshape(a, shape)
            b = If(c) <
                then_branch = one () => (float[n, 4] t) <float[n, 4] s> { s = Abs(a) t = Abs(s) },
                else_branch = two () => (float[n, 4] e) { e = Neg(a) }
            >
            w = Neg(v)
            z = Add(b, w)
        }"""
    )
    costs, sizes = costs_of(model)
    assert sizes == {"n": 2}
    size = 2 * 4 * 4
    # a, b, z and the three results of the branches; w has four elements.
    assert costs.total_activations == 6 * size + 16
    # a, which w reads through v, b, and both results of the first branch.
    assert costs.peak == 4 * size


def test_sizes_that_are_not_known_are_counted() -> None:
    """Dims of a file are any text: only short ones are evaluated."""
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 10, opset_import: ["": 20, "com.vend": 1]>
            main (float[n, 4] x, float[4, m] y) => (float[k, m] z) {
                a = com.vend.MatMul(x)
                b = com.vend.Select(a)
                d = com.vend.Repeat(b)
                e = com.vend.Sort(d)
                z = MatMul(b, y)
            }"""
        )
    )
    for node, dim in zip(model.graph, ("2*n + 1", "u", "9**9**9", "a b )", "k"), strict=True):
        node.outputs[0].shape = ir.Shape([ir.SymbolicDim(dim), 4])
        node.outputs[0].dtype = ir.DataType.FLOAT
    costs, _ = costs_of(model)
    assert (costs.total_activations, costs.total_flops, costs.unknown) == (5 * 4 * 4, 0, 4)


def test_a_function_that_calls_itself() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20, "one": 1]>
        main (float[3] x) => (float[3] z) { z = one.Apply(x) }
        <domain: "one", opset_import: ["": 20, "one": 1]> Apply (x) => (y) { y = one.Apply(x) }"""
    )
    assert costs_of(model)[0].total_flops == 0


def test_the_page_has_the_figures_of_each_module(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
    program = fxonnx.export(model, (torch.rand(4, 8),), dynamic_shapes=({0: "batch"},))
    page = fxonnx.report(program, tmp_path / "page.html").read_text()
    assert "1.3 kFLOPs, two per multiply-add of products and convolutions at batch = 4" in page
    assert "544 bytes, 512 bytes at once at batch = 4" in page
    assert "<i>1.0 kFLOPs</i>" in page  # of the first layer
    program.save(tmp_path / "model.onnx")
    page = fxonnx.report(tmp_path / "model.onnx", tmp_path / "page.html").read_text()
    assert "640 FLOPs, two per multiply-add of products and convolutions at batch = 2" in page
