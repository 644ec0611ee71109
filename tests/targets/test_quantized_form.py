"""Quantized operators in the form that a target fuses: the same numbers as without a target, and as eager torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor
from torch.nn import functional as F

import fxonnx
from tests.functions import Function
from tests.saved import run_from_file

Q = torch.ops.quantized_decomposed
SIGNED, UNSIGNED = ir.DataType.INT8, ir.DataType.UINT8


def quantize(x: Tensor, scale: float = 0.02, zero: int = -7) -> Tensor:
    return Q.quantize_per_tensor(x, scale, zero, -128, 127, torch.int8)


def dequantize(x: Tensor, scale: float = 0.02, zero: int = -7) -> Tensor:
    return Q.dequantize_per_tensor(x, scale, zero, -128, 127, torch.int8)


def optimized_operators(path: Path) -> Counter[str]:
    """The operators of a file after the optimizations of ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)


def moved(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of integers between QuantizeLinear and DequantizeLinear."""
    return lambda x: dequantize(function(quantize(x)))


@dataclass(frozen=True)
class Chain:
    """A function with quantized activations, and the types of their integers for ONNX Runtime."""

    name: str
    function: Callable[..., Any]
    expected: ir.DataType = UNSIGNED

    def __str__(self) -> str:
        return self.name


def _narrow(x: Tensor) -> Tensor:
    return dequantize(Q.quantize_per_tensor(x, 0.02, -7, -100, 90, torch.int8))


def _as_tensors(x: Tensor) -> Tensor:
    scale, zero = x.abs().amax() / 100, x.amin().mul(0).to(torch.int64) - 3
    integers = Q.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
    return Q.dequantize_per_tensor.tensor(integers, scale, zero, -128, 127, torch.int8)


def _per_channel(x: Tensor) -> Tensor:
    scales, zeros = torch.tensor([0.02, 0.05, 0.01]), torch.tensor([0, -5, 8])
    integers = Q.quantize_per_channel(x, scales, zeros, 1, -128, 127, torch.int8)
    return Q.dequantize_per_channel(integers, scales, zeros, 1, -128, 127, torch.int8)


CHAINS = (
    Chain("adjacent", moved(lambda q: q)),
    Chain("limits of torch", _narrow),
    Chain("clamped integers", moved(lambda q: q.clamp(-5, 60))),
    Chain("computed parameters", _as_tensors),
    Chain("per channel", _per_channel),
    Chain("moved", moved(lambda q: q.reshape(q.shape[0], -1).t()[3:].unsqueeze(1))),
    Chain("gathered", moved(lambda q: q.flip(1)[:, [2, 0]])),
    Chain("pooled", moved(lambda q: torch.ops.aten.max_pool2d(q, 2, 2, 1))),
    Chain("joined", lambda x: dequantize(torch.cat([quantize(x), quantize(x * 2, 0.04)], 1))),
    Chain("selected", lambda x: dequantize(torch.where(x > 0, quantize(x), quantize(-x)))),
    Chain("returned", quantize, SIGNED),
    Chain("returned as well", lambda x: (quantize(x), dequantize(quantize(x))), SIGNED),
    Chain("computed with", moved(lambda q: q + 1), SIGNED),
    Chain("joined with a constant", moved(lambda q: torch.cat([q, torch.ones_like(q[:1])])), SIGNED),
    Chain("cast", lambda x: (quantize(x).to(torch.int32) + 3, dequantize(quantize(x))), SIGNED),
    Chain("limit", lambda x: dequantize(torch.minimum(quantize(x), quantize(-x))), SIGNED),
)


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_activations_for_onnxruntime(chain: Chain) -> None:
    inputs = (torch.linspace(-4, 4, 3 * 3 * 4 * 4).reshape(3, 3, 4, 4),)
    model = Function(chain.function).eval()
    options: dict[str, Any] = {"dynamic_shapes": ({0: "batch"},), "opset_version": 21}
    found = {}
    for target in (None, "onnxruntime", "tensorrt"):
        program = fxonnx.export(model, inputs, target=target, **options)
        types = {node.outputs[0].dtype for node in program.model.graph if node.op_type == "QuantizeLinear"}
        assert types == {chain.expected if target == "onnxruntime" else SIGNED}
        run_from_file(program)
        for example in (inputs, (torch.randn(5, 3, 4, 4),)):
            program.verify(example)
        found[target] = program(*inputs)
    for ours, reference in zip(found["onnxruntime"], found[None], strict=True):
        assert torch.equal(ours, reference)


class Linear(torch.nn.Module):
    """A linear layer with 8-bit weights, one scale per output feature, and quantized activations.

    Args:
        form: "static", or the type of activations whose scale is computed from each input.
        bias: A factor of the bias; 0 for none.
        then: Applied to the result.
    """

    def __init__(self, form: str, bias: float = 1.0, then: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form, self.then = form, then
        self.register_buffer("codes", torch.randint(-127, 128, (8, 16), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(8) * 0.01 + 0.001)
        self.register_buffer("bias", torch.randn(8) * bias if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        weight = Q.dequantize_per_channel(self.codes, self.scales, None, 0, -127, 127, torch.int8)
        return self.then(F.linear(self.activations(x), weight, self.bias))

    def activations(self, x: Tensor) -> Tensor:
        if self.form == "static":
            return dequantize(quantize(x))
        dtype, low, high = {"int8": (torch.int8, -128, 127), "uint8": (torch.uint8, 0, 255)}[self.form]
        scale, zero = Q.choose_qparams(x, low, high, 2**-12, dtype)
        integers = Q.quantize_per_tensor.tensor(x, scale, zero, low, high, dtype)
        return Q.dequantize_per_tensor.tensor(integers, scale, zero, low, high, dtype)


@dataclass(frozen=True)
class Product:
    """A quantized layer, and operators of its graph for ONNX Runtime: as exported, and as optimized.

    Attributes:
        tolerance: Largest difference to torch, relative to the largest result.
    """

    name: str
    layer: Linear
    exported: dict[str, int]
    optimized: dict[str, int]
    shape: tuple[int, ...] = (3, 16)
    scale: float = 1.0
    tolerance: float = 1e-6

    def __str__(self) -> str:
        return self.name


def requantized(x: Tensor) -> Tensor:
    return dequantize(quantize(x))


STATIC, INTEGER = {"QGemm": 1, "QuantizeLinear": 1}, {"MatMulIntegerToFloat": 1, "DynamicQuantizeLinear": 0}
# One QuantizeLinear computes the zero point.
WRITTEN_OUT = {"MatMulInteger": 1, "DequantizeLinear": 0, "QuantizeLinear": 2}
PRODUCTS = (
    # Half of the scale of the products, of which biases are multiples.
    Product("static", Linear("static"), {"DequantizeLinear": 3, "Gemm": 1}, STATIC, tolerance=4e-5),
    Product("tokens", Linear("static"), {"DequantizeLinear": 2, "MatMul": 1}, INTEGER, (3, 5, 16)),
    # Rounding may give the next integer.
    Product("quantized", Linear("static", then=requantized), {"DequantizeLinear": 3}, {"QGemm": 1}, tolerance=1e-2),
    Product("too large", Linear("static", 1e8), {"DequantizeLinear": 2, "Gemm": 1}, {"QGemm": 0}),
    Product("int8", Linear("int8"), WRITTEN_OUT, INTEGER),
    Product("uint8", Linear("uint8"), WRITTEN_OUT, INTEGER),
    Product("tokens int8", Linear("int8"), WRITTEN_OUT, INTEGER, (3, 5, 16)),
    Product("no bias", Linear("int8", 0), WRITTEN_OUT, INTEGER),
    # The scale is limited by eps.
    Product("small numbers", Linear("int8"), WRITTEN_OUT, INTEGER, scale=1e-3),
    Product("zeros", Linear("uint8"), WRITTEN_OUT, INTEGER, scale=0.0),
)


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
@pytest.mark.exact_products
def test_products_for_onnxruntime(product: Product, tmp_path: Path) -> None:
    first, other = (torch.randn(size, *product.shape[1:]) * product.scale for size in (3, 7))
    program = fxonnx.export(product.layer.eval(), (first,), dynamic_shapes=({0: "n"},), target="onnxruntime")
    path = tmp_path / "model.onnx"
    program.save(path)
    for operators, expected in (
        (Counter(node.op_type for node in onnx.load(path).graph.node), product.exported),
        (optimized_operators(path), product.optimized),
    ):
        assert {name: operators[name] for name in expected} == expected
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for x in (first, other):
        (found,) = session.run(None, {"x": x.numpy()})
        with torch.no_grad():
            wanted = product.layer(x)
        torch.testing.assert_close(
            torch.from_numpy(found), wanted, rtol=0, atol=product.tolerance * max(wanted.abs().max(), 1e-3)
        )


def test_biases_of_exact_numerics() -> None:
    program = fxonnx.export(
        Linear("static").eval(),
        (torch.randn(3, 16),),
        target="onnxruntime",
        options=fxonnx.ExportOptions(numerics="exact"),
    )
    assert Counter(node.op_type for node in program.model.graph)["DequantizeLinear"] == 2


def test_zero_points_of_weights_without_a_target() -> None:
    program = fxonnx.export(Linear("static").eval(), (torch.randn(3, 16),), verify=True)
    assert [len(node.inputs) for node in program.model.graph if node.op_type == "DequantizeLinear"] == [3, 3]
    # ONNX Runtime dequantizes the rows of such a weight faster than columns.
    (gemm,) = [node for node in program.model.graph if node.op_type == "Gemm"]
    assert gemm.attributes["transB"].as_int() == 1


LIMIT = pytest.mark.xfail(
    strict=True,
    raises=fxonnx.RuntimeSessionError,
    reason="ort: its optimized graph has the type int8 and a zero point of uint8 for one QuantizeLinear of opset 21",
)


@pytest.mark.parametrize(
    ("opset", "target"), [(20, None), pytest.param(21, None, marks=LIMIT), (20, "onnxruntime"), (21, "onnxruntime")]
)
def test_activations_before_a_transpose(opset: int, target: Literal["onnxruntime"] | None) -> None:
    model = Function(lambda x: torch.cat([dequantize(quantize(x)).t(), torch.ones(4, 1)], 1)).eval()
    fxonnx.export(model, (torch.randn(3, 4),), opset_version=opset, target=target, verify=True)


def test_biases_that_do_not_fit_while_saving(tmp_path: Path) -> None:
    program = fxonnx.export(Linear("static").eval(), (torch.randn(3, 16),), target="onnxruntime")
    weights = {name: tensor.clone() for name, tensor in Linear("static", 1e8).state_dict().items()}
    with pytest.raises(fxonnx.SaveError, match="a bias is too large for int32 in the scale of its layer"):
        program.save(tmp_path / "model.onnx", weights=weights)
