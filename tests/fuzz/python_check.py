"""Check one random Python program: export, save, run the file, compare with the model in eager torch at all inputs."""

from __future__ import annotations

import copy
import re
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from torch.utils import _pytree as pytree

import fxonnx
from tests.untouched import State

from .comparison import difference
from .outcome import Finding, Outcome, first_line, touched
from .python_generator import EagerTimeoutError, time_limit
from .python_program import Case, PythonProgram

__all__ = ["check_python", "exported_model"]


@dataclass(frozen=True)
class _Result:
    """Results of one call of the model in eager torch.

    Attributes:
        outputs: The leaves of the returned value.
        mutated: Name to the value of each input and buffer that it changed.
    """

    outputs: list[Any]
    mutated: dict[str, torch.Tensor]


def check_python(program: PythonProgram) -> Outcome:
    """Check one program; the export may refuse it with an error of fxonnx, and a call with an ArgumentError."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = program.load(Path(directory))
            expected = {case: _eager(model, program, case) for case in (program.example, *program.cases)}
        except SyntaxError as error:
            return Outcome(status=f"invalid: {error.msg}")
        example = expected[program.example]
        if example is None:
            return Outcome(status="eager torch fails")
        instance = model().eval()
        exported, warned = exported_model(instance, program, Path(directory) / "model.onnx")
        if isinstance(exported, Outcome):
            return exported
        check = _Check(program, model, exported, Path(directory) / "model.onnx", expected)
        check.warned = warned
        return check.run(instance)


def exported_model(
    instance: torch.nn.Module, program: PythonProgram, path: Path
) -> tuple[fxonnx.ONNXProgram | Outcome, str]:
    """Export a model to a file.

    Args:
        instance: The model.
        program: Its inputs and options.
        path: The file.

    Returns:
        The program, or the outcome of an export that fails or changes the model; and the warnings.
    """
    inputs = program.example_inputs(program.example)
    state = State(instance, inputs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exported = fxonnx.export(
                instance,
                inputs,
                path,
                dynamic_shapes=program.dynamic_shapes,
                opset_version=program.opset,
                state=program.state,
                data_dependent=program.data_dependent,
            )
        except fxonnx.ExportError as error:
            return Outcome(touched(state), status=f"refused: {type(error).__name__}: {_message(error)}"), ""
        except Exception as error:  # noqa: BLE001 - any other exception of an export is a finding
            return Outcome((Finding("internal", f"{type(error).__name__}: {first_line(error)}"),)), ""
    changes = touched(state)
    return Outcome(changes) if changes else exported, "\n".join(str(one.message) for one in caught)


def _message(error: BaseException) -> str:
    """The first line of an error, or the value that is wrong, without names, numbers and lines."""
    first, _, others = str(error).partition("\n")
    if "the captured program does not compute" in first:
        first = f"{first.partition(', at ')[0]}: {others.partition(chr(10))[0]}"
    text = re.sub(r"\S*fuzzed_model\.py:\d+( in \w+)?(: .*)?", "LINE", first)
    text = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "'...'", text)
    return re.sub(r"\b[a-e]?\d+\b", "N", text)[:200]


def _eager(
    model: type[torch.nn.Module], program: PythonProgram, case: Case, *, instance: Any = None, double: bool = False
) -> _Result | None:
    """The result of a new instance in eager torch; None if it raises or runs too long."""
    called = model().eval() if instance is None else instance
    inputs = [value.clone() for value in program.example_inputs(case)]
    if double:
        called = called.double()
        called.h = called.h.double()
        inputs = [value.double() if value.is_floating_point() else value for value in inputs]
    before = copy.deepcopy(inputs), {name: value.clone() for name, value in called.state_dict().items()}
    try:
        with time_limit():
            returned = called(*inputs)
    except (Exception, EagerTimeoutError):  # noqa: BLE001 - programs raise any exception
        return None
    # Outputs may share storage with inputs and buffers, and with each other.
    outputs = [
        leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(returned)
    ]
    names = {**dict(zip(program.inputs, zip(before[0], inputs, strict=True), strict=True))}
    names |= {name: (before[1][name], value) for name, value in called.state_dict().items()}
    return _Result(outputs, {name: new for name, (old, new) in names.items() if not torch.equal(old, new)})


class _Check:
    """Compare one exported file with eager torch."""

    def __init__(
        self,
        program: PythonProgram,
        model: type[torch.nn.Module],
        exported: fxonnx.ONNXProgram,
        path: Path,
        expected: dict[Case, _Result | None],
    ) -> None:
        self.program = program
        self.model = model
        self.exported = exported
        self.path = path
        self.expected = expected
        self.warned = ""
        self.findings: list[Finding] = []
        self.refused: list[Case] = []
        self.unstable: list[Case] = []

    def run(self, instance: torch.nn.Module) -> Outcome:
        """The outcome.

        Args:
            instance: The exported model, which has to be unchanged.
        """
        try:
            onnx.checker.check_model(str(self.path), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            self.findings.append(Finding("checker", first_line(error)))
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            session = onnxruntime.InferenceSession(str(self.path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001 - ONNX Runtime has no base class of its errors
            return Outcome((*self.findings, Finding("load", first_line(error))))
        for case, expected in self.expected.items():
            if expected is not None:
                self._compare(case, expected, session)
        self._compare_instance(instance)
        status = "right" if not self.exported.record.rewrites else "right, rewritten"
        return Outcome(tuple(self.findings), status, refused=tuple(self.refused), unstable=tuple(self.unstable))

    def _compare(self, case: Case, expected: _Result, session: onnxruntime.InferenceSession) -> None:
        try:
            values = self.exported.interface.bind(self.program.example_inputs(case), {})
        except fxonnx.ArgumentError as error:
            self.refused.append(case)
            if case == self.program.example:
                self.findings.append(Finding("refused", first_line(error), case))
            return
        feeds = {value.name: given.numpy() for value, given in zip(session.get_inputs(), values, strict=True)}
        try:
            arrays = session.run(None, feeds)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime has no base class of its errors
            self.findings.append(Finding("run", first_line(error), case))
            return
        found = dict(zip([value.name for value in session.get_outputs()], map(torch.as_tensor, arrays), strict=True))
        lost = self._unreported(expected, found)
        if lost:
            self.findings.append(Finding("unreported", f"{lost} is changed by the model, and no warning says so", case))
        text = self._difference(expected, list(found.values())) or self._state_difference(expected, found)
        if text is None:
            return
        if self._is_stable(case, expected):
            self.findings.append(Finding("wrong", text, case))
        else:
            self.unstable.append(case)

    def _difference(self, expected: _Result, found: Sequence[torch.Tensor]) -> str | None:
        leaves = pytree.tree_leaves(self.exported.unflatten(found))
        if len(leaves) != len(expected.outputs):
            return f"{len(leaves)} outputs instead of {len(expected.outputs)}"
        for index, (theirs, ours) in enumerate(zip(expected.outputs, leaves, strict=True)):
            if not isinstance(theirs, torch.Tensor):
                text = None if torch.as_tensor(ours).item() == theirs else f"{ours} instead of {theirs}"
            else:
                text = difference(theirs, torch.as_tensor(ours))
            if text is not None:
                return f"output {index}: {text}"
        return None

    def _state_difference(self, expected: _Result, found: dict[str, torch.Tensor]) -> str | None:
        """The difference of an input or buffer that the model changes."""
        for name, value in expected.mutated.items():
            text = difference(value, found[f"{name}.out"]) if f"{name}.out" in found else None
            if text is not None:
                return f"{name} after the call: {text}"
        return None

    def _unreported(self, expected: _Result, found: dict[str, torch.Tensor]) -> str | None:
        """An input or buffer that the model changes although neither an output nor a warning says so."""
        tensors = [value for value in expected.outputs if isinstance(value, torch.Tensor)]
        for name, value in expected.mutated.items():
            # The update of an input that the model also returns is not lost.
            reported = f"{name}.out" in found or (self.program.state == "warn" and repr(name) in self.warned)
            if not reported and not any(torch.equal(value, output) for output in tensors):
                return name
        return None

    def _is_stable(self, case: Case, expected: _Result) -> bool:
        """Whether the result is the same in double precision: otherwise rounding decides a branch."""
        other = _eager(self.model, self.program, case, double=True)
        if other is None or len(other.outputs) != len(expected.outputs):
            return True
        return not any(
            isinstance(ours, torch.Tensor) and difference(ours, theirs.to(ours.dtype)) is not None
            for ours, theirs in zip(expected.outputs, other.outputs, strict=True)
        )

    def _compare_instance(self, instance: torch.nn.Module) -> None:
        """The results of the exported model are still those of a new one."""
        expected = self.expected[self.program.example]
        found = _eager(self.model, self.program, self.program.example, instance=instance)
        if expected is None:
            return
        if found is None:
            self.findings.append(Finding("changed", "the exported model fails in eager torch after the export"))
            return
        for theirs, ours in zip(expected.outputs, found.outputs, strict=True):
            if isinstance(theirs, torch.Tensor) and difference(theirs, ours) is not None:
                self.findings.append(Finding("changed", "the exported model computes something else after the export"))
                return
