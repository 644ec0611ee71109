"""Analysis: a dry run of an export, which goes on after errors and lists all that it finds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import onnx_ir as ir
import torch

from ._capture.data_dependence.assumption import AssumptionKind
from ._display import Displayed, html_table
from ._export import export
from ._lower.passthrough import Passthrough
from ._model_files import type_text
from ._options import read_export_options
from ._program import ONNXProgram
from ._program.protobuf_layout import tensor_bytes
from ._public import public
from ._request import ExportOptions, LegacyOptions
from ._warnings import collecting_warnings
from .errors import (
    FACTORIZATION_HINT,
    REASON_HINT,
    ArgumentError,
    CaptureError,
    ConversionError,
    ExportError,
    StateError,
    UnsupportedOperatorError,
)

__all__ = ["Analysis", "ExportIssue", "analyze", "typed_name"]

Kind: TypeAlias = Literal[
    "data-dependent", "capture", "sizes", "operator", "translation", "state", "argument", "warning"
]

_AT = re.compile(r"^  at: (.+)$", re.MULTILINE)
_FOLLOW = 'data_dependent="example"'
_SHAPES = ("dynamic_shapes", "more_inputs")
_MOST_ATTEMPTS = 8


@public
@dataclass(frozen=True)
class ExportIssue:
    """One thing that prevents an export, or that its user should know.

    Attributes:
        kind: "data-dependent" for a value that Python asks for, "capture" for other failures of torch.export, "sizes"
            for dims that cannot be dynamic, "operator" for one without a translation, "translation" for a failing one,
            "state", "argument", or "warning".
        message: Description.
        line: The user's line of code, ``file.py:12``; "" if it is not known.
        remedy: A change of the call or the model; "" if none is known.
        is_error: Whether the export fails because of it.
    """

    kind: Kind
    message: str
    line: str = ""
    remedy: str = ""
    is_error: bool = True

    def __str__(self) -> str:
        place = f"\n    at: {self.line}" if self.line else ""
        remedy = f"\n    do: {self.remedy}" if self.remedy else ""
        return f"{'error' if self.is_error else 'note'}: {self.kind}: {self.message}{place}{remedy}"


@public
@dataclass(frozen=True, repr=False)
class Analysis(Displayed):
    """The result of a dry run.

    Attributes:
        issues: What prevents the export or is worth knowing, errors first.
        opset: The opset of the export; None if no graph could be made.
        nodes: Number of nodes of the graph.
        operators: ONNX operators with their numbers of nodes, the most frequent first.
        weight_bytes: Bytes of the weights.
        inputs: Names of the graph inputs with element types and dims.
        outputs: As ``inputs``, for the graph outputs.
        constraints: Sizes that the inputs must have.
        guards: Limits of the inputs that the graph checks itself.
        frozen: Numbers, strings and tensors that become constants.
        rewrites: Python control flow that is rewritten.
    """

    issues: tuple[ExportIssue, ...]
    opset: int | None = None
    nodes: int = 0
    operators: Mapping[str, int] = field(default_factory=dict)
    weight_bytes: int = 0
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    frozen: Mapping[str, Any] = field(default_factory=dict)
    rewrites: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()

    @property
    def exports(self) -> bool:
        """Whether the same call of ``export`` succeeds."""
        return not any(issue.is_error for issue in self.issues)

    def __str__(self) -> str:
        lines = ["The model exports." if self.exports else "The model does not export."]
        lines += [f"  {line}" for issue in self.issues for line in str(issue).splitlines()]
        if self.opset is None:
            return "\n".join(lines)
        lines.append(f"opset {self.opset}, {self.nodes} nodes, {self.weight_bytes / 2**20:.1f} MiB of weights")
        lines += [f"  input  {value}" for value in self.inputs]
        lines += [f"  output {value}" for value in self.outputs]
        lines += [f"  constraint {text}" for text in self.constraints]
        lines += [f"  guard {text}" for text in self.guards]
        lines += [f"  constant {name} = {value}" for name, value in self.frozen.items()]
        lines += [f"  rewritten {text}" for text in self.rewrites]
        shown = ", ".join(f"{name} {count}" for name, count in list(self.operators.items())[:12])
        return "\n".join([*lines, f"  operators: {shown}"])

    def _repr_html_(self) -> str:
        title = "The model exports." if self.exports else "The model does not export."
        issues = [
            ("error" if one.is_error else "note", one.kind, one.message, one.line, one.remedy) for one in self.issues
        ]
        facts = {
            "opset": str(self.opset),
            "nodes": str(self.nodes),
            "weights": f"{self.weight_bytes / 2**20:.1f} MiB",
            "inputs": "\n".join(self.inputs),
            "outputs": "\n".join(self.outputs),
            "constraints": "\n".join(self.constraints),
            "guards": "\n".join(self.guards),
            "constants": "\n".join(f"{name} = {value}" for name, value in self.frozen.items()),
            "rewritten": "\n".join(self.rewrites),
            "operators": ", ".join(f"{name} {count}" for name, count in self.operators.items()),
        }
        shown = [(name, text) for name, text in facts.items() if text]
        return (
            f"<p>{title}</p>"
            + (html_table("Issues", issues, ("", "kind", "message", "line", "remedy")) if issues else "")
            + (html_table("Graph", shown) if self.opset is not None else "")
        )


@public
def analyze(
    model: torch.nn.Module | torch.export.ExportedProgram,
    args: tuple[Any, ...] | torch.Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Analysis:
    """Find out whether and how a model exports; nothing is written, and the model is not modified.

    The export is run without a destination. After a failure it is repeated with the cause set aside, so that the later
    ones are found as well: guards on values are resolved by the example, operators without a translation stay
    as they are, dims that cannot be dynamic become static.

    Args:
        model: As for ``export``.
        args: Positional example inputs.
        kwargs: Keyword example inputs.
        **options: Further parameters of ``export``, without ``f``.

    Returns:
        The issues, and the facts about the graph if there is one.

    Raises:
        TypeError: If an option does not exist.
    """
    return _Analyzer(model, args, kwargs, options).run()


class _Analyzer:
    """The attempts of one analysis."""

    def __init__(self, model: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> None:
        self._inputs = (model, args)
        self._options = {"kwargs": kwargs, **options}
        self._issues: dict[ExportIssue, None] = {}
        # The failure that was set aside by following the example.
        self._guard: CaptureError | None = None

    def run(self) -> Analysis:
        program = None
        for _ in range(_MOST_ATTEMPTS):
            with collecting_warnings() as caught:
                try:
                    program = export(*self._inputs, **self._options)
                except ExportError as error:
                    if self._set_aside(error):
                        continue
            self._add_warnings(caught)
            break
        if program is None:
            if self._guard is not None:
                self._add("data-dependent", self._guard)
            return Analysis(self._sorted())
        if self._guard is not None:
            self._add_guards(program)
        return _analysis(program, self._sorted())

    def _set_aside(self, error: ExportError) -> bool:
        """Record an error and change the options so that the next attempt gets further; False if none can."""
        before = dict(self._options)
        if isinstance(error, UnsupportedOperatorError):
            self._issues.update(dict.fromkeys(_operator_issues(error)))
            self._options["options"] = _keeping_operators(self._options.get("options"))
        elif isinstance(error, StateError):
            self._add("state", error)
            self._options.pop("state", None)
        elif isinstance(error, CaptureError) and _FOLLOW in (error.hint or "") and self._guard is None:
            # The guards are listed one by one if a later attempt succeeds.
            self._guard = error
            self._options["data_dependent"] = "example"
        elif isinstance(error, CaptureError):
            is_dynamic = any(self._options.get(name) is not None for name in _SHAPES)
            self._add("sizes" if "dynamic" in error.message and is_dynamic else "capture", error)
            if self._options.pop("strict_shapes", None) is None:
                for name in _SHAPES:
                    self._options.pop(name, None)
        else:
            kinds: tuple[tuple[type[ExportError], Kind], ...] = (
                (ConversionError, "translation"),
                (ArgumentError, "argument"),
            )
            self._add(next((kind for cls, kind in kinds if isinstance(error, cls)), "capture"), error)
        return before != self._options

    def _add(self, kind: Kind, error: ExportError) -> None:
        places = _AT.findall(error.message)
        message = _AT.sub("", error.message).strip()
        self._issues[ExportIssue(kind, message, places[-1] if places else "", error.hint or "")] = None

    def _add_warnings(self, caught: Sequence[str]) -> None:
        for message in caught:
            text, _, remedy = message.partition("\nhint: ")
            if self._guard is not None and text.startswith("the model branches on the values"):
                continue  # the guards are issues of their own
            self._issues[ExportIssue("warning", text, remedy=remedy, is_error=False)] = None

    def _add_guards(self, program: ONNXProgram) -> None:
        for assumption in program.record.assumptions:
            if assumption.kind is AssumptionKind.EXAMPLE:
                message = "Python branches on the value of a tensor, which depends on the inputs"
                remedy = (
                    f"pass {_FOLLOW} to follow the example, frozen=[...] if an input is constant, or use torch.cond"
                )
                self._issues[ExportIssue("data-dependent", message, str(assumption.line or ""), remedy)] = None

    def _sorted(self) -> tuple[ExportIssue, ...]:
        return tuple(sorted(self._issues, key=lambda issue: not issue.is_error))


def _keeping_operators(options: ExportOptions | None) -> ExportOptions:
    """Options with which operators without a translation stay as they are."""
    return LegacyOptions(**{**vars(read_export_options(options)), "passthrough": Passthrough("fallthrough")})


def _operator_issues(error: UnsupportedOperatorError) -> Iterator[ExportIssue]:
    for operator in error.operators:
        reasons = "".join(f"; {reason}" for reason in operator.reasons)
        count = "once" if operator.count == 1 else f"{operator.count} times"
        message = f"{operator.name}, used {count}, has no translation at opset {error.opset}{reasons}"
        remedy = f"pass custom_translation_table={{torch.ops.{operator.name}: my_function}}"
        if operator.is_declined or operator.is_factorization:
            remedy = REASON_HINT if operator.is_declined else FACTORIZATION_HINT
        if operator.lowest_opset is not None:
            remedy = f"pass opset_version={operator.lowest_opset}"
        yield ExportIssue("operator", message, operator.location, remedy)


def _analysis(program: ONNXProgram, issues: tuple[ExportIssue, ...]) -> Analysis:
    graph = program.model.graph
    counts = Counter(node.op_type for node in ir.traversal.RecursiveGraphIterator(graph))
    return Analysis(
        issues,
        program.model.opset_imports[""],
        sum(counts.values()),
        dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        tensor_bytes(program.model),
        tuple(map(typed_name, graph.inputs)),
        tuple(map(typed_name, graph.outputs)),
        tuple(map(str, program.record.constraints)),
        dict(program.record.frozen_arguments),
        tuple(map(str, program.record.rewrites)),
        program.record.guards,
    )


def typed_name(value: ir.Value) -> str:
    """The name, element type and dims of a graph input or output, ``x: FLOAT[batch, 3]``."""
    dims = ", ".join(str(dim) for dim in value.shape or ())
    dtype = "?" if value.dtype is None else value.dtype.name
    return f"{value.name}: {type_text(value, f'{dtype}[{dims}]')}"
