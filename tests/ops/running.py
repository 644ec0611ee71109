"""End-to-end test of one problem: torch.export, fxonnx, the checker and ONNX Runtime against eager torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from unittest import mock

import onnx
import onnxruntime
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import fxonnx
from fxonnx.errors import (
    CaptureError,
    ExportError,
    RuntimeSessionError,
    UnsupportedOperatorError,
)

from ..hygiene import check_graph
from ..saved import run_from_file
from .opinfo import Problem

__all__ = ["Outcome", "Status", "is_random", "run", "run_dynamic"]

Status = Literal[
    "ok",
    "eager",  # eager torch rejects the sample
    "capture",  # torch.export rejects it
    "unsupported",
    "export",
    "checker",
    "load",
    "run",
    "count",
    "shape",
    "dtype",
    "value",
]


@dataclass(frozen=True)
class Tolerance:
    """The tolerance of float results."""

    rtol: float
    atol: float


@dataclass(frozen=True)
class Outcome:
    """The result of running a problem.

    Attributes:
        name: Name of the problem.
        status: "ok", or the first failure.
        detail: The error text or the difference.
    """

    name: str
    status: Status
    detail: str = ""


def run(
    problem: Problem, *, undefined: bool = False, tolerance: Tolerance | None = None, opset: int | None = None
) -> Outcome:
    """Export a problem with static sizes and compare its saved file with eager torch.

    Args:
        problem: The problem.
        undefined: The values mean nothing, as those of ``empty``: only number, shape and dtype are compared, as they
            are where two runs of eager torch differ.
        tolerance: Instead of torch.testing's default times 4.
        opset: Target opset.
    """
    expected = _eager(problem)
    if isinstance(expected, Outcome):
        return expected
    program = _export(problem, None, opset)
    if isinstance(program, Outcome):
        return program
    try:
        run_from_file(program)
    except RuntimeSessionError as error:
        return _failed(problem, "load", error)
    except ExportError as error:
        return _failed(problem, "export", error)
    return _compare(problem, program, expected, undefined, tolerance)


def run_dynamic(
    problem: Problem, others: Sequence[Problem] = (), *, undefined: bool = False, tolerance: Tolerance | None = None
) -> Outcome:
    """Exports a problem with every size >= 2 dynamic; compares at its sizes and at those of the others that fit."""
    expected = _eager(problem)
    if isinstance(expected, Outcome):
        return expected
    spec = tuple(
        {axis: torch.export.Dim.AUTO for axis, size in enumerate(tensor.shape) if size >= 2}
        for tensor in problem.inputs
    )
    program = _export(problem, spec, None)
    if isinstance(program, Outcome):
        return program
    outcome = _compare(problem, program, expected, undefined, tolerance)
    ranks = [value.dim() for value in expected if isinstance(value, torch.Tensor)]
    for other in others:
        if outcome.status != "ok":
            break
        if other.key != problem.key or not _fits(program, other):
            continue
        theirs = _eager(other)
        # The rank of the result may depend on sizes (squeeze), which ONNX cannot express.
        if isinstance(theirs, Outcome) or ranks != [v.dim() for v in theirs if isinstance(v, torch.Tensor)]:
            continue
        outcome = _compare(other, program, theirs, undefined, tolerance)
    return outcome


def _fits(program: fxonnx.ONNXProgram, problem: Problem) -> bool:
    """Whether the guards of the captured program hold for other inputs: they are torch's own conditions.

    Sizes of 0 are omitted: ONNX Runtime's reductions return an input without elements as it is, whatever the axes
    (``ReduceSum`` of [3, 0] over axis 1 has the shape [3, 0], not [3]), which a size known to be 0 avoids.
    """
    if any(tensor.numel() == 0 for tensor in problem.inputs):
        return False
    try:
        with torch.no_grad():
            program.exported_program.module()(*problem.copies())
    except (RuntimeError, AssertionError, ValueError):
        return False
    return True


def _eager(problem: Problem) -> list[Any] | Outcome:
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            return pytree.tree_leaves(problem.model(*problem.copies()))
    except Exception as error:  # noqa: BLE001 - if torch raises, the sample is not an export problem
        return _failed(problem, "eager", error)


def _export(problem: Problem, spec: Any, opset: int | None) -> fxonnx.ONNXProgram | Outcome:
    shapes = None if spec is None else (spec,)
    # Sessions made from now on draw the same random numbers in every run, whatever ran before. Not seed 0: the first two
    # runs of a session would draw the same numbers, which tests of random operators in this process rely on not happening.
    onnxruntime.set_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = fxonnx.export(problem.model, problem.copies(), dynamic_shapes=shapes, opset_version=opset)
        except UnsupportedOperatorError as error:
            return _failed(problem, "unsupported", error)
        except CaptureError as error:
            return _failed(problem, "capture", error)
        except ExportError as error:
            return _failed(problem, "export", error)
        except Exception as error:  # noqa: BLE001 - a crash of the exporter is a result as well
            return _failed(problem, "export", error)
    try:
        check_graph(program.model_proto)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, AssertionError) as error:
        return _failed(problem, "checker", error)
    return program


def _compare(
    problem: Problem, program: fxonnx.ONNXProgram, expected: list[Any], undefined: bool, tolerance: Tolerance | None
) -> Outcome:
    try:
        found = program(*problem.copies())
    except RuntimeSessionError as error:
        return _failed(problem, "load" if "cannot load" in str(error) else "run", error)
    expected = [value for value in expected if value is not None]
    if len(found) != len(expected):
        return Outcome(problem.name, "count", f"{len(found)} results instead of {len(expected)}")
    for position, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        reference = _as_real(theirs, ours)
        if ours.dtype != reference.dtype:
            return Outcome(problem.name, "dtype", f"result {position}: {ours.dtype} instead of {reference.dtype}")
        if ours.shape != reference.shape:
            shapes = f"{list(ours.shape)} instead of {list(reference.shape)}"
            return Outcome(problem.name, "shape", f"result {position}: {shapes}")
    if undefined:
        return Outcome(problem.name, "ok")
    pairs = zip(_defined(problem, found), _defined(problem, expected), strict=True)
    for position, (ours, theirs) in enumerate(pairs):
        reference = _as_real(theirs, ours)
        if isinstance(theirs, torch.Tensor) and theirs.is_complex():
            # Tolerances are relative to the modulus.
            ours, reference = torch.complex(*ours.unbind(-1)), torch.complex(*reference.unbind(-1))
        difference = _difference(ours, reference, tolerance, partial(_precise, problem, position))
        if difference and not is_random(problem, position, theirs):
            return Outcome(problem.name, "value", f"result {position}: {difference}")
    return Outcome(problem.name, "ok")


class _RandomOperators(TorchDispatchMode):
    """Records whether operators run that draw random numbers, by their tag in the schema."""

    found = False

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.found |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def is_random(problem: Problem, position: int, first: Any) -> bool:
    """Whether another run of eager torch gives something else, because other random numbers are drawn.

    The tag of the operators alone does not tell: that of attention has it, dropout or not. The database fixes the seed
    of random operators inside of the call, which is undone here.
    """
    if not isinstance(first, torch.Tensor):
        return False
    with _RandomOperators() as operators:
        _eager(problem)
    if not operators.found:
        return False
    # A few random numbers of few bits may be equal by chance.
    for offset in range(1, 65):
        with mock.patch.object(
            torch, "manual_seed", lambda seed, by=offset: torch.default_generator.manual_seed(seed + by)
        ):
            again = _eager(problem)
        if isinstance(again, Outcome):
            return False
        other = _defined(problem, [value for value in again if value is not None])[position]
        if not torch.equal(first.nan_to_num(), other.nan_to_num()):
            return True
    return False


def _defined(problem: Problem, values: Sequence[Any]) -> list[Any]:
    """Return the defined part of a run's results."""
    if problem.defined is None or any(tensor.is_complex() for tensor in problem.inputs):
        return list(values)
    with torch.no_grad():
        structure = pytree.tree_structure(problem.model(*problem.copies()))
    return pytree.tree_leaves(problem.defined(pytree.tree_unflatten(values, structure)))


def _as_real(value: Any, ours: torch.Tensor) -> torch.Tensor:
    if isinstance(value, (bool, int, float)):
        # A Python float has no dtype.
        return torch.tensor(value, dtype=ours.dtype if isinstance(value, float) else None)
    if isinstance(value, complex):
        return torch.view_as_real(torch.tensor(value))
    value = value.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(value) if value.is_complex() else value


def _difference(
    ours: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance | None, precise: Callable[[], torch.Tensor | None]
) -> str:
    """Return a description of the difference, or ""."""
    rtol, atol = torch.testing._comparison.default_tolerances(expected)
    rtol, atol = (4 * rtol, 4 * atol) if tolerance is None else (tolerance.rtol, tolerance.atol)
    wrong = _not_close(ours, expected, rtol, atol)
    # Half types: agreement with a computation in a wider type is accepted.
    if wrong and expected.dtype in (torch.float16, torch.bfloat16):
        wide = precise()
        if wide is not None and not _not_close(ours, wide.to(expected.dtype), rtol, atol):
            return ""
    return wrong


def _not_close(ours: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> str:
    try:
        torch.testing.assert_close(ours, expected, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""


def _precise(problem: Problem, position: int) -> torch.Tensor | None:
    """One result computed in float32 from the same half-precision inputs; None if torch does not."""
    wide = [
        tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor for tensor in problem.copies()
    ]
    try:
        with torch.no_grad():
            value = [leaf for leaf in pytree.tree_leaves(problem.model(*wide)) if leaf is not None][position]
    except (RuntimeError, IndexError, TypeError, ValueError):
        return None
    return value if isinstance(value, torch.Tensor) and value.is_floating_point() else None


def _failed(problem: Problem, status: Status, error: Exception) -> Outcome:
    return Outcome(problem.name, status, f"{type(error).__name__}: {error}"[:2000])
