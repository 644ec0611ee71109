"""Complex operands as pairs of real ones, and structural translations, which act on each part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeAlias

import onnx_ir as ir
import torch

from .._builder.op import Op, Unsupported
from .._builder.symbolic_dims import Dim

__all__ = ["Pair", "choose", "is_complex", "join", "on_parts", "pair_of", "part_dtype", "real_alone", "split_operand"]

Pair: TypeAlias = tuple[ir.Value, ir.Value]
"""The real and the imaginary part, of equal shape and element type."""


def is_complex(op: Op, value: ir.Value) -> bool:
    """Whether a value is complex in the captured graph."""
    return value in op.complex_values


def split_operand(op: Op, value: Any) -> tuple[Any, Any]:
    """Return the parts of an operand: a pair of values for a tensor, of numbers for a number; zeros for a real one."""
    if isinstance(value, complex):
        return value.real, value.imag
    if not isinstance(value, ir.Value):
        return value, 0.0
    if is_complex(op, value):
        return op.parts(value)
    return value, op.const(0.0, part_dtype(op))


def part_dtype(op: Op) -> ir.DataType:
    """Return the element type of the parts of the first complex result, or FLOAT."""
    return next((result.dtype for result in op.results if result.torch_dtype.is_complex), ir.DataType.FLOAT)


def pair_of(op: Op, value: ir.Value | Dim | complex | float | bool, dtype: ir.DataType) -> Pair:
    """Return an operand as a pair in the given element type; the imaginary part of a real one is a 0-dim zero."""
    if isinstance(value, ir.Value) and is_complex(op, value):
        real, imaginary = op.parts(value)
        return op.cast(real, dtype), op.cast(imaginary, dtype)
    if isinstance(value, complex):
        return op.const(value.real, dtype), op.const(value.imag, dtype)
    return op.operand(value, dtype), op.const(0.0, dtype)


def choose(op: Op, condition: ir.Value, chosen: Pair, other: Pair) -> Pair:
    """Return where a condition holds the one pair, elsewhere the other."""
    real, imaginary = (op.Where(condition, *parts) for parts in zip(chosen, other, strict=True))
    return real, imaginary


def _filled(op: Op, argument: Any) -> tuple[Any, Any]:
    """Return the parts of a data argument, with zeros of full shape for real ones: views and joins depend on the shape."""
    if isinstance(argument, (list, tuple)):
        pairs = [_filled(op, item) for item in argument]
        return [real for real, _ in pairs], [imaginary for _, imaginary in pairs]
    if argument is None:
        return None, None
    real, imaginary = split_operand(op, argument)
    if isinstance(argument, ir.Value) and not is_complex(op, argument) and _makes_complex(op):
        real = op.cast(real, part_dtype(op))
        imaginary = op.expand(imaginary, op.dims(argument))
    return real, imaginary


def _makes_complex(op: Op) -> bool:
    return any(result.torch_dtype.is_complex for result in op.results)


def _plain(argument: Any) -> Any:
    if isinstance(argument, torch.dtype) and argument.is_complex:
        return argument.to_real()
    if isinstance(argument, complex):
        raise Unsupported("a complex number as an argument that is not data")
    return argument


def on_parts(
    translation: Callable[..., Any], data: Sequence[str], *, has_parts_axis: bool = False
) -> Callable[..., Any]:
    """Return the translation of complex calls that applies the one for real calls to the real, then the imaginary parts.

    Args:
        translation: The operator's translation for real tensors.
        data: The names of the arguments that hold complex numbers.
        has_parts_axis: Whether it also accepts the complex tensor ``self`` with its last axis for the parts, which takes
            fewer operators if the parts are not known.
    """

    @wraps(translation)
    def run(op: Op, **arguments: Any) -> Any:
        if has_parts_axis and arguments["self"] not in op.builder.parts and not arguments.get("value"):
            return translation(op, **arguments)
        parts = {name: _filled(op, argument) for name, argument in arguments.items() if name in data}
        rest = {name: _plain(argument) for name, argument in arguments.items() if name not in data}
        part = op.for_parts()
        if not _makes_complex(op):
            # The result is real: only the shape or the real part of the complex operand matters.
            return translation(part, **rest, **{name: pair[0] for name, pair in parts.items()})
        is_known = not op.builder.symbols.lacks(op.result.shape)
        if has_parts_axis and is_known and op.is_zero(parts["self"][1]) and not parts.get("value", (0, 0))[1]:
            # Slices and paddings of zeros are zeros.
            zeros = op.expand(op.const(0.0, op.dtype_of(parts["self"][1])), op.result.shape)
            return op.join(translation(part, **rest, **{name: pair[0] for name, pair in parts.items()}), zeros)
        reals, imaginaries = (
            translation(part, **rest, **{name: pair[which] for name, pair in parts.items()}) for which in (0, 1)
        )
        if isinstance(reals, ir.Value):
            # Shape inference would invent symbols for sizes that it does not know.
            return op.join(*(op.builder.with_dims(each, op.result.shape) for each in (reals, imaginaries)))
        # Results that are not complex, such as indices, are the same for both parts.
        return [
            op.join(real, imaginary) if result.torch_dtype.is_complex else real
            for real, imaginary, result in zip(reals, imaginaries, op.results, strict=True)
        ]

    return run


def join(op: Op, real: ir.Value, imaginary: ir.Value) -> ir.Value:
    """Return the result of the FX node from two parts, which are broadcast to its shape."""
    shape = op.result.shape
    return op.join(op.expand(real, shape), op.expand(imaginary, shape))


def real_alone(op: Op, *operands: Any) -> ir.DataType:
    """Return the element type of the parts after type promotion of these operands, for results that are not complex."""
    return op.compute_dtype(*(operand.real if isinstance(operand, complex) else operand for operand in operands))
