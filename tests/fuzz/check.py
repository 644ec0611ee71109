"""Check one program: export, save, load the file, compare with eager torch at all sizes."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import onnx
import onnxruntime
import torch

import fxonnx
from tests.untouched import State

from .comparison import computes_nan, difference, eager, is_stable, nan_limit
from .outcome import Finding, Outcome, first_line, touched
from .program import Program, Sizes
from .recorded import Recorded

__all__ = ["check"]

_FAILURES = (
    RuntimeError,
    IndexError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    ZeroDivisionError,
    NameError,
)


def check(program: Program) -> Outcome:
    """Check one program; where it computes NaN, only exact numerics must agree with eager torch."""
    try:
        eager(program, program.example)
    except _FAILURES as error:
        return Outcome(status=f"eager torch fails: {type(error).__name__}")
    outcome = _check(program, "default")
    wrong = [finding.sizes for finding in outcome.findings if finding.kind == "wrong"]
    if wrong and all(sizes is not None and computes_nan(program, sizes) for sizes in wrong):
        exact = _check(program, "exact")
        return replace(exact, limited=(*exact.limited, "default numerics do not preserve NaN"))
    return outcome


def _check(program: Program, numerics: Literal["default", "exact"]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(directory) / "model.onnx"
        model = program.model()
        inputs = tuple(value.clone() for value in program.example_inputs(program.example))
        state = State(model, inputs)
        try:
            exported = fxonnx.export(
                model,
                inputs,
                path,
                dynamic_shapes=program.dynamic_shapes if any(program.dynamic_shapes) else None,
                opset_version=program.opset,
                target=program.target,  # type: ignore[arg-type]
                options=fxonnx.ExportOptions(numerics=numerics),
            )
        except (fxonnx.CaptureError, fxonnx.UnsupportedOperatorError, fxonnx.PrepareError) as error:
            return Outcome(touched(state), status=type(error).__name__)
        except Exception as error:  # noqa: BLE001 - any other exception of an export is a finding
            return Outcome((Finding("internal", f"{type(error).__name__}: {first_line(error)}"),))
        findings = touched(state)
        outcome = _Check(program, exported, path).run()
        return replace(outcome, findings=(*findings, *outcome.findings))


class _Check:
    """Compare one exported file with eager torch."""

    def __init__(self, program: Program, exported: fxonnx.ONNXProgram, path: Path) -> None:
        self.program = program
        self.exported = exported
        self.path = path
        self.findings: list[Finding] = []
        self.refused: list[Sizes] = []
        self.unstable: list[Sizes] = []
        self.limited: list[str] = []

    def run(self) -> Outcome:
        try:
            onnx.checker.check_model(str(self.path), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            self.findings.append(Finding("checker", first_line(error)))
        try:
            session = self._loaded()
            recorded = Recorded(onnx.load(self.path))
        except Exception as error:  # noqa: BLE001 - ONNX Runtime has no base class of its errors
            return Outcome((*self.findings, Finding("load", first_line(error))))
        seen = set()
        for sizes in map(self.program.static_sizes, (self.program.example, *self.program.sizes)):
            if sizes not in seen:
                seen.add(sizes)
                self._compare(sizes, session, recorded)
        return Outcome(
            tuple(self.findings),
            refused=tuple(self.refused),
            unstable=tuple(self.unstable),
            limited=tuple(dict.fromkeys(self.limited)),
        )

    def _loaded(self) -> onnxruntime.InferenceSession:
        """A session for the file, without a fusion of ONNX Runtime that makes invalid models of valid ones."""
        try:
            return _session(str(self.path))
        except Exception as error:
            if "is not a graph input, initializer, or output of a previous node" not in str(error):
                raise
            session = _session(str(self.path), disabled_optimizers=["MatMulScaleFusion"])
            self.limited.append("MatMulScaleFusion removes a node that others use")
            return session

    def _compare(self, sizes: Sizes, session: onnxruntime.InferenceSession, recorded: Recorded) -> None:
        try:
            expected = eager(self.program, sizes)
        except _FAILURES:
            # The model does not support this size.
            return
        inputs = self.program.example_inputs(sizes)
        try:
            values = [value.numpy() for value in self.exported.interface.bind(inputs, {})]
            self.exported.record.capture.limits.check(inputs)
        except fxonnx.ArgumentError as error:
            self.refused.append(sizes)
            if sizes == self.program.example:
                self.findings.append(Finding("refused", first_line(error), sizes))
            return
        feeds = {value.name: array for value, array in zip(session.get_inputs(), values, strict=True)}
        try:
            found = [torch.from_numpy(array) for array in session.run(None, feeds)]
        except Exception as error:  # noqa: BLE001 - ONNX Runtime has no base class of its errors
            self.findings.append(Finding("run", first_line(error), sizes))
            return
        if len(found) != len(expected):
            self.findings.append(Finding("wrong", f"{len(found)} outputs instead of {len(expected)}", sizes))
            return
        for index, (theirs, ours) in enumerate(zip(expected, found, strict=True)):
            text = difference(theirs, ours, has_half="half()" in self.program.model_source)
            if text is None:
                continue
            limit = nan_limit(self.program, sizes)
            if limit is not None:
                self.limited.append(limit)
            elif not is_stable(self.program, sizes, expected, index):
                self.unstable.append(sizes)
            else:
                self.findings.append(Finding("wrong", f"{self.program.outputs[index]}: {text}", sizes))
        self.findings += [Finding("recorded", text, sizes) for text in recorded.differences(feeds)]


def _session(source: str | bytes, **further: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"], **further)
