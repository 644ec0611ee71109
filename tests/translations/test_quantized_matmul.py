"""Matrix products of quantized operands."""

from __future__ import annotations

import pytest
import torch

import fxonnx
from tests.functions import Function

from .harness import Case, T, run

aten = torch.ops.aten
INT8 = T(("n", 16), torch.int8, -128, 128)


class Recognized(torch.nn.Module):
    """The operator that stands for a weight that a model unpacks."""

    def __init__(self, table: torch.Tensor | None = None) -> None:
        super().__init__()
        self.codes = torch.nn.Buffer(torch.randint(0, 16, (8, 64), dtype=torch.int8))
        self.scale, self.table = torch.nn.Buffer(torch.rand(8, 4) / 8), table
        self.zero_point = torch.nn.Buffer(torch.randint(0, 16, (8, 4), dtype=torch.int8)) if table is None else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.ops.fxonnx.dequantize(self.codes, self.scale, self.zero_point, self.table, 0, 15, [1, 16])
        return torch.nn.functional.linear(x, weight)


class Packed8(torch.nn.Module):
    """int8 weights with a scale for each column of the result."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.codes = torch.nn.Buffer(torch.randint(-128, 128, (8, 64), dtype=torch.int8))
        self.scales = torch.nn.Buffer((torch.rand(8) / 64).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return aten._weight_int8pack_mm(x, self.codes, self.scales)


class Packed4(torch.nn.Module):
    """int4 weights in the layout of torch's kernel for CPUs."""

    def __init__(self, group: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.group = group
        codes = torch.randint(0, 16, (64, 128), dtype=torch.int32)
        self.packed = torch.nn.Buffer(aten._convert_weight_to_int4pack_for_cpu(codes, 1))
        self.parameters_of_groups = torch.nn.Buffer((torch.rand(128 // group, 64, 2) / 8).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return aten._weight_int4pack_mm_for_cpu(x, self.packed, self.group, self.parameters_of_groups)


class Dynamic4(torch.nn.Module):
    """int4 weights with rows of the input rounded to 8 bits."""

    def __init__(self, block: int, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.block = block
        codes, scales = torch.randint(0, 256, (8, 32), dtype=torch.uint8), torch.rand(8, 64 // block) / 8
        self.packed = torch.nn.Buffer(aten._dyn_quant_pack_4bit_weight(codes, scales, bias, block, 64, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return aten._dyn_quant_matmul_4bit(x, self.packed, self.block, 64, 8)


def float8(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(torch.float8_e4m3fn)


class Float8(torch.nn.Module):
    """A float8 weight and rows that are converted to float8."""

    def __init__(self, scale_a: tuple[int, ...], scale_b: tuple[int, ...], bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.dtype = torch.nn.Buffer(float8(16, 32)), dtype
        self.scales = torch.nn.ParameterList([torch.rand(scale_a) + 0.5, torch.rand(scale_b) + 0.5])
        self.bias = torch.nn.Buffer(torch.rand(16)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, (scale_a, scale_b) = x.to(torch.float8_e4m3fn), self.scales
        return aten._scaled_mm(rows, self.weight.t(), scale_a, scale_b, self.bias, out_dtype=self.dtype)


class Groups(torch.nn.Module):
    """Rows in groups, each times its matrix; torch has no kernel for CPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Buffer(float8(3, 16, 32))
        self.scale = torch.nn.Buffer(torch.rand(3, 16) + 0.5)

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        rows, scale = x.to(torch.float8_e4m3fn), x.abs().amax(1)
        if torch.compiler.is_exporting():
            matrices = self.weight.transpose(1, 2)
            return aten._scaled_grouped_mm(rows, matrices, scale, self.scale, ends, out_dtype=torch.bfloat16)
        scaled = rows.float() * scale[:, None]
        result = torch.zeros(len(x), 16)
        begin = 0
        for end, matrix in zip(ends.tolist(), self.weight.float() * self.scale[:, :, None], strict=True):
            result[begin:end] = scaled[begin:end] @ matrix.t()
            begin = end
        return result.bfloat16()


ROW = T(("n", 64))
# The scale is 1.
TIES = torch.tensor([-127.0, 128.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, *[0.0] * 56])
FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
CASES = (
    Case("aten._int_mm.default", aten._int_mm.default, (INT8, T((16, 8), torch.int8, -128, 128)), "int8"),
    Case(
        "aten._int_mm.default",
        aten._int_mm.default,
        (T(("n", 16), torch.uint8, 0, 256), T((16, 8), torch.int8, -128, 128)),
        "uint8",
    ),
    Case("aten._weight_int8pack_mm.default", Packed8(), (ROW,), "weight", ops=("DequantizeLinear", "MatMul")),
    Case(
        "aten._weight_int8pack_mm.default",
        Packed8(BFLOAT16),
        (T(("n", 64), BFLOAT16),),
        "bfloat16",
        rtol=0.05,
        atol=0.05,
    ),
    Case(
        "aten._weight_int8pack_mm.default",
        aten._weight_int8pack_mm.default,
        (ROW, T((8, 64), torch.int8, -128, 128), T((8,))),
        "computed",
        rtol=1e-5,
        atol=1e-2,
    ),
    Case(
        "aten._weight_int4pack_mm_for_cpu.default",
        Packed4(32),
        (T(("n", 128)),),
        "groups",
        opset=21,
        rtol=1e-5,
        atol=1e-4,
    ),
    Case(
        "aten._weight_int4pack_mm_for_cpu.default",
        Packed4(128),
        (T(("n", 128)),),
        "before int4",
        opset=18,
        rtol=1e-5,
        atol=1e-4,
    ),
    Case(
        "aten._weight_int4pack_mm_for_cpu.default",
        Packed4(64, BFLOAT16),
        (T(("n", 128), BFLOAT16),),
        "bfloat16",
        opset=21,
        rtol=0.05,
        atol=0.2,
    ),
    Case("aten._dyn_quant_matmul_4bit.default", Dynamic4(64), (ROW,), "channels", opset=21, rtol=1e-5, atol=1e-4),
    Case(
        "aten._dyn_quant_matmul_4bit.default",
        Dynamic4(32, torch.rand(8)),
        (ROW,),
        "blocks and bias",
        opset=21,
        rtol=1e-5,
        atol=1e-4,
    ),
    Case(
        "aten._dyn_quant_matmul_4bit.default",
        Dynamic4(32),
        (torch.stack([torch.zeros(64), TIES]),),
        "zeros and ties",
        opset=18,
        rtol=1e-5,
        atol=1e-4,
    ),
    Case("aten._scaled_mm.default", Float8((), (), False, FLOAT32), (T(("n", 32)),), "tensor", opset=19),
    Case("aten._scaled_mm.default", Float8((1,), (1, 1), True, FLOAT32), (T(("n", 32)),), "bias", opset=19),
    Case(
        "aten._scaled_mm.default",
        Float8((4, 1), (1, 16), True, BFLOAT16),
        (T((4, 32)),),
        "rows",
        opset=19,
        rtol=0.02,
        atol=0.02,
    ),
    Case(
        "aten._scaled_grouped_mm.default",
        Groups(),
        (T(("n", 32)), torch.tensor([1, 1, 4], dtype=torch.int32)),
        "groups",
        opset=19,
        rtol=0.02,
        atol=0.1,
    ),
)

CASES += (
    Case("fxonnx.dequantize.default", Recognized(), (ROW,), "integers", ops=("DequantizeLinear", "MatMul"), opset=21),
    Case("fxonnx.dequantize.default", Recognized(torch.linspace(-1, 1, 16)), (ROW,), "table", opset=21),
)

REFUSED = {
    "computed in the model": (
        lambda x: aten._weight_int4pack_mm_for_cpu(
            x, aten._convert_weight_to_int4pack_for_cpu(x.to(torch.int32), 1), 32, torch.rand(2, 64, 2)
        ),
        (64, 64),
    ),
    "packed for another kernel": (
        lambda x: aten._dyn_quant_matmul_4bit(x, torch.cat([x.flatten()[:280], x[0, :0]]), 32, 64, 8),
        (8, 64),
    ),
    "scale_result": (
        lambda x: aten._scaled_mm(
            x.to(torch.float8_e4m3fn),
            x.to(torch.float8_e4m3fn).t(),
            torch.tensor(1.0),
            torch.tensor(1.0),
            None,
            torch.tensor(2.0),
            torch.float32,
        ),
        (16, 16),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refused(reason: str) -> None:
    function, shape = REFUSED[reason]
    with pytest.raises(fxonnx.ExportError, match=reason):
        fxonnx.export(Function(function).eval(), (torch.rand(shape),), opset_version=21)


class Scaled(torch.nn.Module):
    """A product with int8 codes whose scale is applied to the weight or to the result."""

    def __init__(self, scales: tuple[int, ...], *, late: bool, extra: bool = False) -> None:
        super().__init__()
        self.late, self.extra = late, extra
        self.codes = torch.nn.Buffer(torch.randint(-128, 128, (8, 64), dtype=torch.int8))
        self.scale = torch.nn.Buffer(torch.rand(scales) / 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.codes.t().to(x.dtype)
        if not self.late:
            return x @ (weight * self.scale)
        product = torch.mm(x, weight)
        return product * self.scale + product.sum() if self.extra else self.scale * product


FUSED = ("DequantizeLinear", "MatMul")
ROWS = T(("n", 64))
SCALED_CODES = (
    Case("aten.mul.Tensor", Scaled((8,), late=True), (ROWS,), "columns", ops=FUSED),
    Case("aten.mul.Tensor", Scaled((1, 8), late=True), (ROWS,), "row", ops=FUSED),
    Case("aten.mul.Tensor", Scaled((), late=True), (ROWS,), "tensor", ops=FUSED),
    Case("aten.mul.Tensor", Scaled((8,), late=False), (ROWS,), "weight", ops=FUSED),
    Case("aten.mul.Tensor", Scaled((64, 1), late=False), (ROWS,), "weight rows", ops=FUSED),
    Case("aten.mul.Tensor", Scaled((8,), late=True), (ROWS,), "opset 12", ops=("Cast", "MatMul", "Mul"), opset=12),
    Case(
        "aten.mul.Tensor", Scaled((4, 1), late=True), (T((4, 64)),), "rows of the result", ops=("Cast", "MatMul", "Mul")
    ),
    Case("aten.mul.Tensor", Scaled((8,), late=True, extra=True), (ROWS,), "other uses"),
)


@pytest.mark.parametrize("case", [*CASES, *SCALED_CODES], ids=str)
@pytest.mark.exact_products
def test_quantized_matmul(case: Case) -> None:
    run(case)
