"""Check one random program with state: a sequence of calls of the saved file against those of the model in eager torch."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch.utils import _pytree as pytree

import fxonnx

from .comparison import PerturbedNormalization, difference
from .outcome import Finding, Outcome, first_line
from .python_check import exported_model
from .python_generator import EagerTimeoutError, time_limit
from .python_program import Case, PythonProgram

__all__ = ["check_state"]

_KEY = "pkg.fxonnx.state"
_ATTRIBUTES = "forward changes Python attributes that later calls read"


@dataclass(frozen=True)
class _Call:
    """Results of one call in a sequence.

    Attributes:
        outputs: The leaves of the returned value.
        state: Name to the value of each tensor of the model after the call, and of numbers that are attributes.
    """

    outputs: Sequence[Any]
    state: Mapping[str, Any]


class _RefusedError(Exception):
    """A call is refused by the constraints or assumptions of the program."""


class _RunError(Exception):
    """ONNX Runtime fails."""


def check_state(program: PythonProgram) -> Outcome:
    """Check one program; the export may refuse it with an error of fxonnx, and a call with an ArgumentError."""
    calls = (program.example, *program.cases)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = program.load(Path(directory))
        except SyntaxError as error:
            return Outcome(status=f"invalid: {error.msg}")
        before = {name: value.clone() for name, value in model().named_buffers(remove_duplicate=False)}
        expected = _eager(model().eval(), program, calls)
        if not expected:
            return Outcome(status="eager torch fails")
        instance = model().eval()
        path = Path(directory) / "model.onnx"
        exported, warned = exported_model(instance, program, path)
        if isinstance(exported, Outcome):
            return exported
        findings, refused, is_wrong = _findings(program, exported, path, expected)
        findings += _unreported(path, before, expected, warned)
        if is_wrong and _ATTRIBUTES in warned:
            return Outcome(status="wrong from the second call", limited=(_ATTRIBUTES,))
        if is_wrong and not _is_stable(model, program, calls, expected):
            return Outcome(status="right", unstable=(program.example,))
        # The place for a comparison of everything of the exported model with a new one.
        again = _eager(instance, program, calls)
        if [_difference(one, other) for one, other in zip(expected, again, strict=False)] != [None] * len(expected):
            findings.append(Finding("changed", "the exported model computes something else after the export"))
        return Outcome(tuple(findings), "right", refused=tuple(refused))


def _states(model: torch.nn.Module) -> dict[str, Any]:
    """Copies of the buffers, parameters, and attributes of a model that are tensors or numbers."""
    found: dict[str, Any] = {name: value.detach().clone() for name, value in model.state_dict().items()}
    for path, module in model.named_modules(remove_duplicate=False):
        values = {**vars(module), **dict(module.named_buffers(recurse=False))}
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        found |= {f"{path}.{name}".lstrip("."): value.detach().clone() for name, value in tensors.items()}
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
        found |= {f"{path}.{name}".lstrip("."): value for name, value in numbers.items()}
    return found


def _eager(
    model: torch.nn.Module, program: PythonProgram, calls: Sequence[Case], *, double: bool = False
) -> list[_Call]:
    """The calls of a model in eager torch, up to one that raises or runs too long."""
    found = []
    if double:
        model = model.double()
        for module in model.modules():
            for name, value in vars(module).items():
                if isinstance(value, torch.Tensor):
                    setattr(module, name, value.double())
    for case in calls:
        inputs = [value.double() if double else value.clone() for value in program.example_inputs(case)]
        try:
            with time_limit():
                returned = model(*inputs)
        except (Exception, EagerTimeoutError):  # noqa: BLE001 - programs raise any exception
            break
        leaves = pytree.tree_leaves(returned)
        outputs = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        found.append(_Call(outputs, _states(model)))
    return found


class _File:
    """Runs a saved file, and feeds the state of each call to the next one.

    Args:
        exported: The program, which binds the inputs and arranges the outputs.
        path: The file.
    """

    def __init__(self, exported: fxonnx.ONNXProgram, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        self._exported = exported
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._outputs = [value.name for value in self._session.get_outputs()]
        self._pairs = json.loads(self._session.get_modelmeta().custom_metadata_map.get(_KEY, "[]"))
        states = {pair["input"] for pair in self._pairs if pair["initial"] is not None}
        # ONNX Runtime lists inputs with a default value apart from the others.
        self._inputs = [value.name for value in self._session.get_inputs() if value.name not in states]
        self._state: dict[str, np.ndarray[Any, Any]] = {}

    def call(self, inputs: Sequence[torch.Tensor]) -> _Call:
        """Run one call."""
        try:
            values = self._exported.interface.bind(inputs, {})
        except fxonnx.ArgumentError as error:
            raise _RefusedError(first_line(error)) from error
        feeds = {name: given.numpy() for name, given in zip(self._inputs, values, strict=True)}
        try:
            arrays = self._session.run(None, {**feeds, **self._state})
        except Exception as error:  # ONNX Runtime has no base class of its errors
            raise _RunError(first_line(error)) from error
        found = dict(zip(self._outputs, arrays, strict=True))
        kept = [pair for pair in self._pairs if pair["initial"] is not None]
        self._state = {pair["input"]: found[pair["output"]] for pair in kept}
        returned = self._exported.unflatten([torch.as_tensor(one) for one in arrays])
        state = {pair["name"]: torch.as_tensor(found[pair["output"]]) for pair in kept}
        return _Call(pytree.tree_leaves(returned), state)


def _findings(
    program: PythonProgram, exported: fxonnx.ONNXProgram, path: Path, expected: Sequence[_Call]
) -> tuple[list[Finding], list[Case], bool]:
    """The defects of a file, the refused call, and whether a value is wrong."""
    findings = []
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        findings.append(Finding("checker", first_line(error)))
    try:
        file = _File(exported, path)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime has no base class of its errors
        return [*findings, Finding("load", first_line(error))], [], False
    for number, (case, theirs) in enumerate(zip((program.example, *program.cases), expected, strict=False), 1):
        try:
            ours = file.call(program.example_inputs(case))
        except _RefusedError as error:
            if number == 1:
                findings.append(Finding("refused", str(error), case))
            return findings, [case], False
        except _RunError as error:
            return [*findings, Finding("run", f"call {number}: {error}", case)], [], False
        text = _difference(theirs, ours)
        if text is not None:
            return [*findings, Finding("wrong", f"call {number}: {text}", case)], [], True
    return findings, [], False


def _difference(expected: _Call, found: _Call) -> str | None:
    """The difference of two calls as text; of the state that the second one has."""
    if len(expected.outputs) != len(found.outputs):
        return f"{len(found.outputs)} outputs instead of {len(expected.outputs)}"
    named = [
        (f"output {index}", one, other)
        for index, (one, other) in enumerate(zip(expected.outputs, found.outputs, strict=True))
    ]
    states = {name: value for name, value in found.state.items() if name in expected.state}
    named += [(f"{name} after the call", expected.state[name], value) for name, value in states.items()]
    for name, theirs, ours in named:
        if isinstance(theirs, torch.Tensor):
            text = difference(theirs, torch.as_tensor(ours))
        else:
            text = None if torch.as_tensor(ours).item() == theirs else f"{ours} instead of {theirs}"
        if text is not None:
            return f"{name}: {text}"
    return None


def _unreported(
    path: Path, before: Mapping[str, torch.Tensor], expected: Sequence[_Call], warned: str
) -> list[Finding]:
    """The buffers that a call changes although the file neither returns them nor warns."""
    metadata = {one.key: one.value for one in onnx.load(path, load_external_data=False).metadata_props}
    returned = {pair["name"] for pair in json.loads(metadata.get(_KEY, "[]"))}
    changed = {
        name
        for call in expected
        for name, value in call.state.items()
        if name in before and not (value.shape == before[name].shape and torch.equal(value, before[name]))
    }
    lost = [name for name in before if name in changed - returned and repr(name) not in warned]
    # One tensor may have several names.
    lost = [name for name in lost if not any(_is_alias(name, other, expected) for other in returned)]
    return [Finding("unreported", f"{lost[0]} is changed by the model without an output or a warning")] if lost else []


def _is_alias(name: str, other: str, expected: Sequence[_Call]) -> bool:
    """Whether two names have the same values after every call."""
    pairs = [(call.state[name], call.state[other]) for call in expected if other in call.state]
    return all(isinstance(one, torch.Tensor) and difference(second, one) is None for second, one in pairs)


def _is_stable(
    model: type[torch.nn.Module], program: PythonProgram, calls: Sequence[Case], expected: Sequence[_Call]
) -> bool:
    """Whether results are the same in double precision and for rounded operands: otherwise rounding decides them."""
    double = _eager(model().eval(), program, calls, double=True)
    with PerturbedNormalization():
        perturbed = _eager(model().eval(), program, calls)
    return _are_equal(double, expected) and _are_equal(perturbed, expected)


def _are_equal(other: Sequence[_Call], expected: Sequence[_Call]) -> bool:
    """Whether calls return the same, and leave the same state."""
    if len(other) != len(expected):
        return True
    return not any(
        isinstance(ours, torch.Tensor) and difference(ours, theirs.to(ours.dtype)) is not None
        for one, call in zip(expected, other, strict=True)
        for ours, theirs in (
            *zip(one.outputs, call.outputs, strict=True),
            *((value, call.state[name]) for name, value in one.state.items() if name in call.state),
        )
    )
