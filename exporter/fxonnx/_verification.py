"""Comparison of ONNX Runtime with eager torch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch

from fxonnx_translations._torch_compat import pytree

from ._capture.autograd_functions import called_functions
from ._capture.inputs.preserve import preserved
from ._capture.inputs.pytree_objects import assembled, dismantled
from ._capture.patches import one_at_a_time
from ._options import in_mode
from ._program.call_binding import Call, bind
from ._program.stateful import final_states
from ._verification_inputs import auto_sizes, check_sizes, resized
from .errors import ArgumentError, VerificationError

if TYPE_CHECKING:
    from ._program import ONNXProgram

__all__ = ["TOLERANCES", "Row", "compare", "verify"]

TOLERANCES: Mapping[torch.dtype, float] = MappingProxyType(
    {
        # Both the relative tolerance and, times the scale of the output, the absolute one.
        torch.float64: 1e-8,
        torch.float32: 1e-4,
        torch.float16: 1e-2,
        torch.bfloat16: 4e-2,
        # Float8 has 3 or 2 bits of mantissa: two steps.
        torch.float8_e4m3fn: 0.25,
        torch.float8_e4m3fnuz: 0.25,
        torch.float8_e5m2: 0.5,
        torch.float8_e5m2fnuz: 0.5,
    }
)


@dataclass(frozen=True)
class Row:
    """The comparison of one output.

    Attributes:
        name: Name of the graph output.
        index: Its position among the graph outputs.
        status: Whether it agrees; "skipped" is for a whole size at which eager torch itself fails.
        dtype: What eager torch returns, complex numbers as real pairs.
        shape: The shape of that.
        max_abs: Largest absolute difference of finite elements; None if nothing could be subtracted.
        max_rel: Largest difference relative to eager torch's value, likewise.
        message: What disagrees, or "".
        sizes: Name and size of each dynamic dim, if several sizes were tried.
    """

    name: str
    index: int
    status: Literal["ok", "mismatch", "skipped"]
    dtype: str
    shape: tuple[int, ...]
    max_abs: float | None = None
    max_rel: float | None = None
    message: str = ""
    sizes: tuple[tuple[str, int], ...] = ()


def verify(
    program: ONNXProgram,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    sizes: Literal["auto"] | Sequence[Mapping[str, int]] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> list[Row]:
    """Runs the exported program in ONNX Runtime and in eager torch on the same inputs, and compares.

    Lengths, dtypes, shapes and the positions of NaN and infinity must agree, integers and bools must be equal. A
    finite floating-point element may differ by ``atol + rtol * |expected|``. By default ``rtol`` is that of
    ``TOLERANCES`` for its dtype, and ``atol`` is ``rtol`` times the largest value of the output that differs at all.

    Args:
        program: The program.
        args: Positional inputs; with ``kwargs`` also absent, the inputs the program was exported with.
        kwargs: Keyword inputs.
        sizes: Sizes to try instead of those of the inputs: dicts from the name of a dynamic dim to its size, those left
            out as in the inputs; or "auto" for 1, the inputs' own sizes, primes and large ones within the constraints.
            Inputs of other sizes are random, with a fixed seed, in the range of the values given. The model itself is
            run in eager torch then, not what was captured of it.
        rtol: Relative tolerance.
        atol: Absolute tolerance.

    Returns:
        One row for each graph output and size.

    Raises:
        ArgumentError: If there are no inputs to run on, they do not fit the exported ones, or their sizes or ``sizes``
            not the constraints.
        RuntimeSessionError: If ONNX Runtime can not load or run the model.
        VerificationError: If an output disagrees; it has all rows.
    """
    if args is None and kwargs is None:
        if program.example_inputs is None:
            raise ArgumentError("args", "the exported program has no example inputs", hint="pass args or kwargs")
        args, kwargs = program.example_inputs
    call = bind(program.exported_program, args or (), kwargs or {}, program.forward)
    if sizes is None:
        # Each run gets inputs of its own: a model may write to them.
        actual = program(*_copied(call.args), **_copied(call.kwargs))
        rows = _compared(program, _run_captured(program, call.args, call.kwargs), actual, rtol, atol)
    else:
        rows = [row for one in _tried_sizes(program, call, sizes) for row in _rows_at(program, call, one, rtol, atol)]
    if any(row.status == "mismatch" for row in rows):
        raise VerificationError(f"ONNX Runtime and eager torch disagree:\n{_table(rows)}", rows=rows)
    return rows


@dataclass(frozen=True)
class _Trial:
    """Sizes to compare at, and whether eager torch may fail there."""

    sizes: Mapping[str, int]
    may_fail: bool


def _tried_sizes(program: ONNXProgram, call: Call, sizes: Any) -> list[_Trial]:
    limits = program.limits
    given = limits.sizes(call.inputs)
    if sizes == "auto":
        return [_Trial(one, one != given) for one in auto_sizes(limits, call.inputs)]
    if isinstance(sizes, str | Mapping) or not all(isinstance(one, Mapping) for one in sizes):
        raise ArgumentError(
            "sizes", f"expected 'auto' or a list of dicts, got {sizes!r}", hint='for example [{"n": 3}]'
        )
    trials = []
    for one in sizes:
        complete = {**given, **one}
        check_sizes(limits, complete)
        trials.append(_Trial(complete, may_fail=False))
    return trials


def _rows_at(program: ONNXProgram, call: Call, trial: _Trial, rtol: float | None, atol: float | None) -> list[Row]:
    args, kwargs = resized(program.exported_program, program.limits, call, trial.sizes)
    sizes = tuple(trial.sizes.items())
    shown = ", ".join(f"{name} = {size}" for name, size in sizes)
    try:
        expected = _run_source(program, args, kwargs)
    except Exception as error:  # a model may raise anything
        reason = f"eager torch fails: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        if trial.may_fail:
            return [Row("-", -1, "skipped", "-", (), message=reason, sizes=sizes)]
        raise ArgumentError("sizes", f"{reason}\n  at sizes: {shown}") from error
    actual = program(*_copied(args), **_copied(kwargs))
    return [replace(row, sizes=sizes) for row in _compared(program, expected, actual, rtol, atol)]


def _run_captured(program: ONNXProgram, args: Any, kwargs: Any) -> list[Any]:
    module = _isolated_module(program.exported_program)
    weights = {name: buffer.detach().clone() for name, buffer in module.named_buffers()} | dict(program.applied_weights)
    args, kwargs = tuple(_copied(args)), dict(_copied(kwargs))
    with torch.no_grad(), called_functions(program.functions):
        result = torch.func.functional_call(module, weights, args, kwargs, tie_weights=False)
        return _returned(result) + _final_states(program, module, weights, args, kwargs)


def _run_source(program: ONNXProgram, args: Any, kwargs: Any) -> list[Any]:
    """The user's model on inputs, which leaves it as it is; what was captured of it, if it is not at hand."""
    source = program.source
    if source is None:
        return _run_captured(program, args, kwargs)
    weights = {name: buffer.detach().clone() for name, buffer in source.named_buffers()} | dict(program.applied_weights)
    args, kwargs = _copied(args), _copied(kwargs)
    # While another thread exports the same model, it has other weights.
    with one_at_a_time(), torch.no_grad(), in_mode(source, program.mode), preserved(source, ()):
        given = _with_numbers((args, kwargs), program.scalars)
        if program.objects is not None:
            given = assembled(program.objects, given)
        # What is scripted takes no other weights; nor has it changed, then.
        is_scripted = any(isinstance(module, torch.jit.ScriptModule) for module in source.modules())
        result = dismantled(
            source(*given[0], **given[1])
            if is_scripted and not program.applied_weights
            else torch.func.functional_call(source, weights, *given, tie_weights=False)
        )
        return _returned(result) + _final_states(program, source, weights, args, kwargs)


def _returned(result: Any) -> list[Any]:
    return [leaf for leaf in pytree.tree_leaves(result) if not isinstance(leaf, str | None)]


def _final_states(program: ONNXProgram, module: torch.nn.Module, weights: Any, args: Any, kwargs: Any) -> list[Any]:
    if not program.states:
        return []
    call = bind(program.exported_program, args, kwargs, program.forward)
    return _copied(final_states(program, module, weights, call.inputs))  # type: ignore[no-any-return]


def _with_numbers(given: Any, positions: Collection[int]) -> Any:
    """The inputs with Python's numbers where the program has tensors for them."""
    if not positions:
        return given
    leaves, structure = pytree.tree_flatten(given)
    numbers = [leaf.item() if index in positions else leaf for index, leaf in enumerate(leaves)]
    return pytree.tree_unflatten(numbers, structure)


def _compared(
    program: ONNXProgram,
    expected: Sequence[Any],
    actual: Sequence[torch.Tensor],
    rtol: float | None,
    atol: float | None,
) -> list[Row]:
    names = [str(value.name) for value in program.model.graph.outputs]
    return compare(names, expected, actual, rtol=rtol, atol=atol)


def _copied(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), tree)


def _isolated_module(exported_program: torch.export.ExportedProgram) -> torch.nn.Module:
    """The program as a module with buffers of its own: ``module()`` shares them with the user's model."""
    module = exported_program.module()
    for owner in module.modules():
        for name, buffer in owner.named_buffers(recurse=False):
            setattr(owner, name, buffer.detach().clone())
        for name, value in list(vars(owner).items()):
            if isinstance(value, torch.Tensor):
                setattr(owner, name, value.detach().clone())
    return module


def compare(
    names: Sequence[str],
    expected: Sequence[Any],
    actual: Sequence[torch.Tensor],
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> list[Row]:
    """Compares two lists of outputs; see ``verify``.

    Args:
        names: Names of the outputs.
        expected: What eager torch returned: tensors or Python numbers.
        actual: What ONNX Runtime returned.
        rtol: Relative tolerance.
        atol: Absolute tolerance.

    Raises:
        VerificationError: If the numbers of outputs differ.
    """
    if not len(names) == len(expected) == len(actual):
        raise VerificationError(
            f"eager torch returns {len(expected)} outputs, ONNX Runtime {len(actual)}, "
            f"and the graph has {len(names)}: {', '.join(names)}"
        )
    return [
        _row(index, name, theirs, ours, rtol, atol)
        for index, (name, theirs, ours) in enumerate(zip(names, expected, actual, strict=True))
    ]


def _row(index: int, name: str, value: Any, actual: torch.Tensor, rtol: float | None, atol: float | None) -> Row:
    expected = _as_tensor(value, actual)
    if expected is None:
        return Row(name, index, "mismatch", type(value).__name__, (), message="eager torch returns no tensor")
    dtype, shape = str(expected.dtype).removeprefix("torch."), tuple(expected.shape)
    if actual.dtype != expected.dtype:
        return Row(name, index, "mismatch", dtype, shape, message=f"dtype {actual.dtype} instead of {expected.dtype}")
    if actual.shape != expected.shape:
        return Row(
            name, index, "mismatch", dtype, shape, message=f"shape {list(actual.shape)} instead of {list(shape)}"
        )
    max_abs, max_rel, message = _differences(expected, actual, rtol, atol)
    return Row(name, index, "mismatch" if message else "ok", dtype, shape, max_abs, max_rel, message)


def _as_tensor(value: Any, actual: torch.Tensor) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        return torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if isinstance(value, float):
        # A Python float has no width of its own.
        return torch.tensor(value, dtype=actual.dtype if actual.is_floating_point() else torch.float32)
    return torch.tensor(value) if isinstance(value, (bool, int)) else None


def _differences(
    expected: torch.Tensor, actual: torch.Tensor, rtol: float | None, atol: float | None
) -> tuple[float | None, float | None, str]:
    """Largest absolute and relative difference, and what is wrong, or ""."""
    if not expected.is_floating_point():
        # Integers are compared as they are; float64 is for the report only.
        wrong = expected != actual
        max_abs, max_rel = _largest(expected.double(), actual.double(), wrong)
        return max_abs, max_rel, _count(wrong, "elements differ")
    theirs, ours = expected.double(), actual.double()
    nan = theirs.isnan() != ours.isnan()
    infinite = (theirs.isinf() | ours.isinf()) & (theirs != ours) & ~nan
    differs = (theirs != ours) & theirs.isfinite() & ours.isfinite()
    max_abs, max_rel = _largest(theirs, ours, differs)
    if nan.any():
        return max_abs, max_rel, _count(nan, "elements are NaN on one side only")
    if infinite.any():
        return max_abs, max_rel, _count(infinite, "elements are infinite on one side only, or of another sign")
    relative = TOLERANCES.get(expected.dtype, TOLERANCES[torch.float32]) if rtol is None else rtol
    if atol is None:
        # Masks such as -1e9 are equal on both sides; counting them in would let anything pass beside them.
        scale = theirs[differs].abs().max().item() if differs.any() else 0.0
        atol = TOLERANCES.get(expected.dtype, TOLERANCES[torch.float32]) * scale
    wrong = differs & ((theirs - ours).abs() > atol + relative * theirs.abs())
    return max_abs, max_rel, _count(wrong, f"elements differ by more than {atol:.2g} + {relative:.2g} * |expected|")


def _largest(expected: torch.Tensor, actual: torch.Tensor, where: torch.Tensor) -> tuple[float, float]:
    if not where.any():
        return 0.0, 0.0
    difference = (expected[where] - actual[where]).abs()
    relative = difference / expected[where].abs()
    return difference.max().item(), relative.max().item()


def _count(wrong: torch.Tensor, what: str) -> str:
    count = int(wrong.sum())
    if not count:
        return ""
    return f"{count} of {wrong.numel()} {what}, first at {wrong.nonzero()[0].tolist()}"


def _table(rows: Sequence[Row]) -> str:
    """The rows as aligned plain text."""
    cells = [("output", "status", "dtype", "shape", "max abs", "max rel", "", "")]
    cells += [
        (
            row.name,
            row.status,
            row.dtype,
            str(list(row.shape)),
            _number(row.max_abs),
            _number(row.max_rel),
            row.message,
            f"[{', '.join(f'{name} = {size}' for name, size in row.sizes)}]" if row.sizes else "",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.2e}"
