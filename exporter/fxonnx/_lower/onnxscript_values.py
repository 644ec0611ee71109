"""Graph values with Python operators, as arguments of plain functions written with onnxscript opsets."""

from __future__ import annotations

from functools import partialmethod
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
        plain = to_plain(other)
        # A number has the type of the value, also of one that an operator of another domain computes.
        pair = [self.value, plain if self.value.dtype is None else self._op.operand(plain, self.value.dtype)]
        return ScriptOperand(self._op, getattr(self._op, op_type)(*(reversed(pair) if swapped else pair)))

    def __neg__(self) -> ScriptOperand:
        return ScriptOperand(self._op, self._op.Neg(self.value))

    __add__ = partialmethod(_binary, "Add")
    __sub__ = partialmethod(_binary, "Sub")
    __mul__ = partialmethod(_binary, "Mul")
    __truediv__ = partialmethod(_binary, "Div")
    __pow__ = partialmethod(_binary, "Pow")
    __mod__ = partialmethod(_binary, "Mod")
    __matmul__ = partialmethod(_binary, "MatMul")
    __lt__ = partialmethod(_binary, "Less")
    __le__ = partialmethod(_binary, "LessOrEqual")
    __gt__ = partialmethod(_binary, "Greater")
    __ge__ = partialmethod(_binary, "GreaterOrEqual")
    __radd__ = partialmethod(_binary, "Add", swapped=True)
    __rsub__ = partialmethod(_binary, "Sub", swapped=True)
    __rmul__ = partialmethod(_binary, "Mul", swapped=True)
    __rtruediv__ = partialmethod(_binary, "Div", swapped=True)
    __rpow__ = partialmethod(_binary, "Pow", swapped=True)
    __rmod__ = partialmethod(_binary, "Mod", swapped=True)
    __rmatmul__ = partialmethod(_binary, "MatMul", swapped=True)


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
