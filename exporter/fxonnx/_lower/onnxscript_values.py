"""Graph values with Python operators, as arguments of plain functions written with onnxscript opsets."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from fxonnx_translations._builder.dtypes import from_torch
from fxonnx_translations._builder.op import Op

__all__ = ["ScriptOperand", "to_plain", "to_script_value"]


class ScriptOperand:
    """A graph value with Python arithmetic and comparison operators, as in ``x * 2 > y``.

    Args:
        op: The op object of the node.
        value: The graph value; other attributes are forwarded to it.
    """

    def __init__(self, op: Op, value: ir.Value) -> None:
        self._op = op
        self.value = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def _binary(self, op_type: str, other: Any, *, swapped: bool = False) -> ScriptOperand:
        pair = [self.value, self._op.operand(to_plain(other), self._op.dtype_of(self.value))]
        return ScriptOperand(self._op, getattr(self._op, op_type)(*(reversed(pair) if swapped else pair)))

    def __neg__(self) -> ScriptOperand:
        return ScriptOperand(self._op, self._op.Neg(self.value))

    def __add__(self, other: Any) -> ScriptOperand:
        return self._binary("Add", other)

    def __radd__(self, other: Any) -> ScriptOperand:
        return self._binary("Add", other, swapped=True)

    def __sub__(self, other: Any) -> ScriptOperand:
        return self._binary("Sub", other)

    def __rsub__(self, other: Any) -> ScriptOperand:
        return self._binary("Sub", other, swapped=True)

    def __mul__(self, other: Any) -> ScriptOperand:
        return self._binary("Mul", other)

    def __rmul__(self, other: Any) -> ScriptOperand:
        return self._binary("Mul", other, swapped=True)

    def __truediv__(self, other: Any) -> ScriptOperand:
        return self._binary("Div", other)

    def __rtruediv__(self, other: Any) -> ScriptOperand:
        return self._binary("Div", other, swapped=True)

    def __pow__(self, other: Any) -> ScriptOperand:
        return self._binary("Pow", other)

    def __rpow__(self, other: Any) -> ScriptOperand:
        return self._binary("Pow", other, swapped=True)

    def __mod__(self, other: Any) -> ScriptOperand:
        return self._binary("Mod", other)

    def __rmod__(self, other: Any) -> ScriptOperand:
        return self._binary("Mod", other, swapped=True)

    def __matmul__(self, other: Any) -> ScriptOperand:
        return self._binary("MatMul", other)

    def __rmatmul__(self, other: Any) -> ScriptOperand:
        return self._binary("MatMul", other, swapped=True)

    def __lt__(self, other: Any) -> ScriptOperand:
        return self._binary("Less", other)

    def __le__(self, other: Any) -> ScriptOperand:
        return self._binary("LessOrEqual", other)

    def __gt__(self, other: Any) -> ScriptOperand:
        return self._binary("Greater", other)

    def __ge__(self, other: Any) -> ScriptOperand:
        return self._binary("GreaterOrEqual", other)


def to_script_value(op: Op, argument: Any) -> Any:
    """Convert an argument to the form in which torch.onnx passes it to onnxscript functions."""
    if isinstance(argument, ir.Value):
        return ScriptOperand(op, argument)
    if isinstance(argument, list):
        return [to_script_value(op, item) for item in argument]
    if isinstance(argument, torch.dtype):
        return int(from_torch(argument))
    if isinstance(argument, (torch.device, torch.memory_format, torch.layout)):
        return str(argument)
    return argument


def to_plain(returned: Any) -> Any:
    """Unwrap operands, also in lists, to the graph values they hold."""
    if isinstance(returned, (list, tuple)):
        return [to_plain(item) for item in returned]
    return returned.value if isinstance(returned, ScriptOperand) else returned
