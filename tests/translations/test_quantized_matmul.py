"""Matrix products of quantized operands."""

from __future__ import annotations

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten
INT8 = T(("n", 16), torch.int8, -128, 128)

CASES = (
    Case("aten._int_mm.default", aten._int_mm.default, (INT8, T((16, 8), torch.int8, -128, 128)), "int8"),
    Case(
        "aten._int_mm.default",
        aten._int_mm.default,
        (T(("n", 16), torch.uint8, 0, 256), T((16, 8), torch.int8, -128, 128)),
        "uint8",
    ),
)


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
def test_quantized_matmul(case: Case) -> None:
    run(case)
