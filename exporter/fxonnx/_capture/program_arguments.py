"""Arguments beside an ExportedProgram, whose inputs and dims are fixed already: they must not differ from its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import Dim, ExportedProgram

from fxonnx_translations._torch_compat import pytree

from ..errors import ArgumentError, did_you_mean, kind_of
from .inputs.example_inputs import program_inputs
from .inputs.pytree_objects import flatten_objects
from .shapes.dynamic_shapes import Leaf

__all__ = ["check_program_arguments", "check_program_shapes"]

_HINT = "leave it out: the program has inputs of its own; or pass the nn.Module, to capture it for these"
_VARIABLE = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
_LOWEST = 2
"""torch leaves 0 and 1 out of the ranges of some sizes."""


def check_program_arguments(program: ExportedProgram, args: Any, kwargs: Mapping[str, Any] | None) -> None:
    """Check that example inputs are ones that a program takes; their values have no effect.

    Args:
        program: The captured program.
        args: Positional inputs, or a tensor; an empty tuple if there are none.
        kwargs: Keyword inputs.

    Raises:
        ArgumentError: If they have another structure, dtype or shape than the program takes.
    """
    given = (args,) if isinstance(args, torch.Tensor) else args
    if not given and not kwargs:
        return
    own = program_inputs(program)
    names = [*own.signature.parameters]
    if not isinstance(given, tuple | list):
        raise _error("args", f"expected a tuple or a tensor, got {kind_of(given)}")
    if len(given) > len(names):
        raise _error("args", f"the ExportedProgram takes {len(names)} inputs, got {len(given)} positional ones")
    bound = dict(zip(names, given, strict=False))
    for name, value in (kwargs or {}).items():
        if name not in names:
            taken = f"it takes {', '.join(names) or 'none'}"
            raise _error("kwargs", f"the ExportedProgram has no input {name!r}", did_you_mean(name, names, taken))
        if name in bound:
            raise _error("kwargs", f"{name!r} is also given by position")
        bound[name] = value
    expected = dict(zip(names, (*own.args, *own.kwargs.values()), strict=True))
    sizes: dict[sympy.Expr, int] = {}
    for name in names:
        if name in bound:
            argument = "kwargs" if name in (kwargs or {}) else "args"
            _check_input(program, argument, name, bound[name], expected[name], sizes)
        elif any(isinstance(leaf, _VARIABLE) for leaf in pytree.tree_leaves(expected[name])):
            raise _error("kwargs" if kwargs else "args", f"the input {name!r} of the ExportedProgram is missing")


def check_program_shapes(program: ExportedProgram, leaves: Sequence[Leaf]) -> None:
    """Check that specs only name the dynamic dims of a program.

    Args:
        program: The captured program.
        leaves: Its inputs, with the specs of the user.

    Raises:
        ArgumentError: If a spec makes a dynamic dim static, or gives it another range.
    """
    for leaf in leaves:
        shape: Sequence[Any] = leaf.value.shape if isinstance(leaf.value, torch.Tensor) else ()
        for axis, size in enumerate(shape):
            if not isinstance(size, torch.SymInt):
                continue
            if axis in leaf.fixed:
                problem = f"{leaf.label} axis {axis} is dynamic in the ExportedProgram, not static"
                raise _error("dynamic_shapes", problem)
            spec, known = leaf.dims.get(axis), program.range_constraints.get(size.node.expr)
            if known is None or type(spec) is not Dim:
                continue
            ranges = [(max(int(spec.min), _LOWEST), spec.max), (max(int(known.lower), _LOWEST), known.upper)]
            is_named_only = int(spec.min) <= _LOWEST and not _is_finite(spec.max)
            if not is_named_only and ranges[0] != ranges[1]:
                problem = f"{leaf.label} axis {axis} is {known.lower} to {known.upper} in the ExportedProgram"
                raise _error("dynamic_shapes", f"{problem}, not {spec.min} to {spec.max}")


def _is_finite(size: Any) -> bool:
    return isinstance(size, int | sympy.Integer)


def _error(argument: str, problem: str, hint: str | None = None) -> ArgumentError:
    return ArgumentError(argument, problem, hint=_HINT if hint is None else f"{hint}; or {_HINT}")


def _check_input(
    program: ExportedProgram, argument: str, name: str, value: Any, expected: Any, sizes: dict[sympy.Expr, int]
) -> None:
    """Check one input; sizes of dynamic dims are collected."""
    given, structure = pytree.tree_flatten(flatten_objects(_with_tuples(value)))
    leaves, known = pytree.tree_flatten(expected)
    if structure != known or len(given) != len(leaves):
        raise _error(argument, f"{name!r} has another structure than in the ExportedProgram")
    for leaf, own in zip(given, leaves, strict=True):
        if isinstance(own, torch.Tensor):
            _check_tensor(program, argument, name, leaf, own, sizes)
        elif isinstance(own, _VARIABLE):
            continue
        elif isinstance(leaf, torch.Tensor) or repr(leaf) != repr(own):
            shown = kind_of(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf)
            raise _error(argument, f"{name!r} is {shown}, but the constant {own!r} in the ExportedProgram")


def _with_tuples(value: Any) -> Any:
    """The input with tuples in the place of sizes of tensors, as torch.export makes of them."""
    return pytree.tree_map(
        lambda part: tuple(part) if isinstance(part, torch.Size) else part,
        value,
        is_leaf=lambda part: isinstance(part, torch.Size),
    )


def _check_tensor(
    program: ExportedProgram, argument: str, name: str, given: Any, own: torch.Tensor, sizes: dict[sympy.Expr, int]
) -> None:
    if isinstance(given, bool | int | float) and not own.dim():
        return
    if not isinstance(given, torch.Tensor):
        raise _error(argument, f"{name!r} is {kind_of(given)}, but a tensor in the ExportedProgram")
    if given.dtype != own.dtype:
        raise _error(argument, f"{name!r} is {given.dtype}, but {own.dtype} in the ExportedProgram")
    matches = given.dim() == own.dim()
    for size, known in zip(given.shape, own.shape, strict=True) if matches else ():
        if isinstance(known, torch.SymInt):
            bounds = program.range_constraints.get(known.node.expr)
            matches &= isinstance(size, torch.SymInt) or sizes.setdefault(known.node.expr, size) == size
            matches &= bounds is None or isinstance(size, torch.SymInt) or bool(bounds.lower <= size <= bounds.upper)
        else:
            matches &= size == known
    if not matches:
        shape = ", ".join(map(str, own.shape))
        raise _error(argument, f"{name!r} has the shape {[*given.shape]}, but [{shape}] in the ExportedProgram")
