"""Test harness of translations: one table row per operator and case, exported and compared with eager torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import torch

import fxonnx
from fxonnx._program.session import session_in_float

from ..functions import VariadicFunction
from ..hygiene import check_graph
from ..saved import run_from_file
from .operators import is_absent

SIZES: Mapping[str, tuple[int, int]] = {
    # name of a dynamic dim: (size at export, second size)
    "n": (4, 7),
    "m": (3, 5),
    "t": (6, 2),
    "h": (8, 11),
    "w": (9, 12),
}


@dataclass(frozen=True)
class T:
    """A random example tensor.

    Attributes:
        shape: Sizes; a string names a dynamic dim of ``SIZES``.
        dtype: Its dtype.
        low: Smallest value.
        high: Largest value (exclusive for integers).
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype = torch.float32
    low: float = -2.0
    high: float = 2.0

    def make(self, second: bool, generator: torch.Generator) -> torch.Tensor:
        sizes = [SIZES[dim][second] if isinstance(dim, str) else dim for dim in self.shape]
        if self.dtype == torch.bool:
            return torch.rand(sizes, generator=generator) < 0.5
        if self.dtype.is_complex:
            sizes = [*sizes, 2]
        values = torch.rand(sizes, generator=generator, dtype=torch.float64) * (self.high - self.low) + self.low
        if self.dtype.is_complex:
            return torch.view_as_complex(values).to(self.dtype)
        return values.floor().to(self.dtype) if not self.dtype.is_floating_point else values.to(self.dtype)

    @property
    def dynamic(self) -> dict[int, str]:
        return {axis: dim for axis, dim in enumerate(self.shape) if isinstance(dim, str)}


@dataclass(frozen=True)
class Case:
    """One table row.

    Attributes:
        target: The overload it exercises, e.g. ``aten.add.Tensor``.
        function: The model: a function of the inputs, or an nn.Module.
        inputs: Example tensors (``T`` or literal tensors).
        name: Description of the case.
        opset: Target opset.
        rtol: Relative tolerance, or None for torch.testing's default times 4.
        atol: Absolute tolerance, likewise.
        numerics: "exact" for rows whose inputs or results have NaN that only it preserves.
        ops: ONNX operators that must be exactly the exported graph's, in order, if given.
    """

    target: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    name: str = ""
    opset: int | None = None
    rtol: float | None = None
    atol: float | None = None
    numerics: Literal["default", "exact"] = "default"
    ops: tuple[str, ...] | None = field(default=None)

    def __str__(self) -> str:
        return f"{self.target}-{self.name}" if self.name else self.target


def _example(case: Case, second: bool) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(value.make(second, generator) if isinstance(value, T) else value for value in case.inputs)


def _compare(case: Case, program: fxonnx.ONNXProgram, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(model(*(value.clone() for value in inputs)))
    found = program(*inputs)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        reference = torch.as_tensor(theirs)
        if reference.is_complex():
            # The model's complex outputs are real pairs.
            reference = torch.view_as_real(reference.resolve_conj())
        rtol, atol = torch.testing._comparison.default_tolerances(reference)
        torch.testing.assert_close(
            ours,
            reference,
            rtol=4 * rtol if case.rtol is None else case.rtol,
            atol=4 * atol if case.atol is None else case.atol,
            equal_nan=True,
        )


def run(case: Case) -> None:
    """Export the row statically and, if it names dims, dynamically; compare at the example's and the second sizes.

    The static program runs from its saved file, the last program is called as well.
    """
    if is_absent(case.target.replace(".", "::", 1).removesuffix(".default")):
        pytest.skip(f"torch {torch.__version__} has no {case.target}")
    model = VariadicFunction(case.function).eval()
    inputs = _example(case, second=False)
    program = fxonnx.export(
        model, inputs, opset_version=case.opset, options=fxonnx.ExportOptions(numerics=case.numerics)
    )
    check_graph(program.model_proto)
    targets = {str(node.target) for node in program.exported_program.graph.nodes}
    in_place = {target.replace("_.", ".", 1) for target in targets}
    assert case.target in targets | in_place, f"{case.target} is not among {sorted(targets)}"
    if case.ops is not None:
        assert tuple(node.op_type for node in program.model.graph) == case.ops
    specs = [value.dynamic if isinstance(value, T) else None for value in case.inputs]
    if not any(specs):
        program.initialize_inference_session(session_in_float)
        _compare(case, program, model, inputs)
    run_from_file(program)
    _compare(case, program, model, inputs)
    if any(specs):
        dynamic = fxonnx.export(
            model,
            inputs,
            dynamic_shapes=(tuple(specs),),
            opset_version=case.opset,
            options=fxonnx.ExportOptions(numerics=case.numerics),
        )
        check_graph(dynamic.model_proto)
        dynamic.initialize_inference_session(session_in_float)
        _compare(case, dynamic, model, inputs)
        _compare(case, dynamic, model, _example(case, second=True))
