"""The values that plain functions of onnxscript get: they calculate with them as with tensors."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from fxonnx_translations._builder.dtypes import from_torch
from fxonnx_translations._builder.op import Op

__all__ = ["Operand", "as_operand", "plain"]


class Operand:
    """A value of the graph that functions may also write ``x * 2 > y`` with.

    Args:
        op: The op object of the node.
        value: The value; its attributes are those of the operand.
    """

    def __init__(self, op: Op, value: ir.Value) -> None:
        self._op = op
        self.value = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def _with(self, op_type: str, other: Any, *, swapped: bool = False) -> Operand:
        pair = [self.value, self._op.operand(plain(other), self._op.dtype_of(self.value))]
        return Operand(self._op, getattr(self._op, op_type)(*(reversed(pair) if swapped else pair)))

    def __neg__(self) -> Operand:
        return Operand(self._op, self._op.Neg(self.value))

    def __add__(self, other: Any) -> Operand:
        return self._with("Add", other)

    def __radd__(self, other: Any) -> Operand:
        return self._with("Add", other, swapped=True)

    def __sub__(self, other: Any) -> Operand:
        return self._with("Sub", other)

    def __rsub__(self, other: Any) -> Operand:
        return self._with("Sub", other, swapped=True)

    def __mul__(self, other: Any) -> Operand:
        return self._with("Mul", other)

    def __rmul__(self, other: Any) -> Operand:
        return self._with("Mul", other, swapped=True)

    def __truediv__(self, other: Any) -> Operand:
        return self._with("Div", other)

    def __rtruediv__(self, other: Any) -> Operand:
        return self._with("Div", other, swapped=True)

    def __pow__(self, other: Any) -> Operand:
        return self._with("Pow", other)

    def __rpow__(self, other: Any) -> Operand:
        return self._with("Pow", other, swapped=True)

    def __mod__(self, other: Any) -> Operand:
        return self._with("Mod", other)

    def __rmod__(self, other: Any) -> Operand:
        return self._with("Mod", other, swapped=True)

    def __matmul__(self, other: Any) -> Operand:
        return self._with("MatMul", other)

    def __rmatmul__(self, other: Any) -> Operand:
        return self._with("MatMul", other, swapped=True)

    def __lt__(self, other: Any) -> Operand:
        return self._with("Less", other)

    def __le__(self, other: Any) -> Operand:
        return self._with("LessOrEqual", other)

    def __gt__(self, other: Any) -> Operand:
        return self._with("Greater", other)

    def __ge__(self, other: Any) -> Operand:
        return self._with("GreaterOrEqual", other)


def as_operand(op: Op, argument: Any) -> Any:
    """An argument as torch.onnx passes it to functions of onnxscript."""
    if isinstance(argument, ir.Value):
        return Operand(op, argument)
    if isinstance(argument, list):
        return [as_operand(op, item) for item in argument]
    if isinstance(argument, torch.dtype):
        return int(from_torch(argument))
    if isinstance(argument, (torch.device, torch.memory_format, torch.layout)):
        return str(argument)
    return argument


def plain(returned: Any) -> Any:
    """Operands as the values they are."""
    if isinstance(returned, (list, tuple)):
        return [plain(item) for item in returned]
    return returned.value if isinstance(returned, Operand) else returned
