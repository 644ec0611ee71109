"""The result of comparing intermediate values, and its text."""

from __future__ import annotations

import linecache
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

import torch

from .._comparison import OutputComparison, OutputRows, format_rows
from .._display import Displayed
from .._public import public

__all__ = ["Comparison", "ValueDifference", "ValueStatistics", "source_text", "statistics_of"]

_SHOWN_STEPS = 12
"""Number of steps of a path that are printed."""


@public
@dataclass(frozen=True)
class ValueStatistics:
    """Statistics of a tensor.

    Attributes:
        minimum: Smallest finite element; NaN if there is none.
        maximum: Largest finite element; NaN if there is none.
        mean: Mean of the finite elements; NaN if there is none.
        not_finite: Number of elements that are infinite or NaN.
    """

    minimum: float
    maximum: float
    mean: float
    not_finite: int

    def __str__(self) -> str:
        text = f"{self.minimum:.4g} to {self.maximum:.4g}, mean {self.mean:.4g}"
        return f"{text}, {self.not_finite} not finite" if self.not_finite else text


def statistics_of(tensor: torch.Tensor) -> ValueStatistics:
    """Compute the statistics of a real tensor."""
    values = tensor.detach().double().flatten()
    finite = values[values.isfinite()]
    count = values.numel() - finite.numel()
    if not finite.numel():
        return ValueStatistics(math.nan, math.nan, math.nan, count)
    return ValueStatistics(finite.min().item(), finite.max().item(), finite.mean().item(), count)


@public
@dataclass(frozen=True)
class ValueDifference:
    """The comparison of one value of the captured program with the ONNX value that stands for it.

    Attributes:
        name: Name of the FX node in the captured graph, after the path of the subgraph that it is in.
        value: Name of the ONNX value.
        operator: The PyTorch operator.
        module: FQN of the module that calls it, "" for the model itself.
        module_class: Class of that module.
        line: Source location, ``file.py:12``.
        source: The text of that line, if the file is available.
        dtype: Dtype of the captured value.
        shape: Its shape.
        error: Largest absolute difference from the captured program's value, which includes the errors of all nodes
            before it; None if dtypes or shapes differ.
        own_error: Largest absolute difference from the PyTorch operator applied to the ONNX values of its inputs, which
            excludes the errors of all nodes before it; None if it was not computed.
        is_wrong: Whether ``own_error`` exceeds the tolerance: the difference begins at this node.
        message: Description of the difference, or "".
        expected: Statistics of the PyTorch operator's result.
        actual: Statistics of the ONNX value.
        iteration: In the body of a loop, the first iteration with a difference.
    """

    name: str
    value: str
    operator: str
    module: str
    module_class: str
    line: str
    dtype: str
    shape: tuple[int, ...]
    source: str = ""
    error: float | None = None
    own_error: float | None = None
    is_wrong: bool = False
    message: str = ""
    expected: ValueStatistics | None = None
    actual: ValueStatistics | None = None
    iteration: int | None = None

    def __str__(self) -> str:
        module = f", module {self.module} ({self.module_class})" if self.module else ""
        lines = [f"{self.operator} at {self.line}{module}"]
        if self.source:
            lines.append(f"    {self.source}")
        iteration = "" if self.iteration is None else f", iteration {self.iteration}"
        lines.append(f"  FX node {self.name}, ONNX value {self.value}: {self.dtype}{list(self.shape)}{iteration}")
        if self.message:
            lines.append(f"  {self.message}")
        if self.expected is not None and self.actual is not None:
            lines += [f"  PyTorch: {self.expected}", f"  ONNX:    {self.actual}"]
        return "\n".join(lines)


@public
@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """Outputs of a program in ONNX Runtime beside the model's, and intermediate values beside the captured ones.

    Attributes:
        outputs: One row for each graph output, as ``verify`` returns them.
        values: The intermediate values that were compared with the captured program's, in graph order; empty if
            its outputs agree with ONNX Runtime.
        paths: For each output that differs, the compared values from the first difference to it, in graph order.
        sizes: The sizes of dynamic dims at which the difference was found.
        capture: The outputs in which the captured program, run in PyTorch, differs from the model: the difference is in
            the capture, not in a translation.
    """

    outputs: tuple[OutputComparison, ...]
    values: tuple[ValueDifference, ...] = ()
    paths: Mapping[str, Sequence[ValueDifference]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    capture: tuple[OutputComparison, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all outputs agree."""
        return all(row.status != "mismatch" for row in self.outputs)

    @property
    def first(self) -> ValueDifference | None:
        """The first value that differs although its inputs agree; None if there is none."""
        return next((value for value in self.values if value.is_wrong), None)

    @property
    def modules(self) -> dict[str, float]:
        """FQN of each module to the largest error that one of its own nodes adds, largest first."""
        found: dict[str, float] = {}
        for value in self.values:
            if value.own_error is not None:
                found[value.module] = max(found.get(value.module, 0.0), value.own_error)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def location(self) -> str:
        """The first difference and the growth of the error as text, "" if all outputs agree."""
        if self.ok:
            return ""
        lines = (
            [f"at sizes: {', '.join(f'{name} = {size}' for name, size in self.sizes.items())}"] if self.sizes else []
        )
        if self.capture:
            lines.append("The difference is in the capture: the captured program, run in PyTorch, is not the model:")
            lines += [f"  {row.name}: {row.message}" for row in self.capture]
            if not self.values:
                return "\n".join([*lines, "ONNX Runtime agrees with the captured program: no translation differs."])
        if self.first is None:
            lines.append(f"None of the {len(self.values)} compared values differs from PyTorch's on the same inputs.")
        else:
            lines += ["First difference:", *(f"  {line}" for line in str(self.first).splitlines())]
        for name, path in self.paths.items():
            lines.append(f"Error on the path to {name}:")
            lines += [f"  {_error(one.error)}  {one.name}  ({one.module or '-'}, {one.line})" for one in _shown(path)]
        return "\n".join(lines)

    @property
    def _title(self) -> str:
        if not self.ok:
            return "Outputs differ:"
        all_compared = all(row.status == "ok" for row in self.outputs)
        return "All outputs agree:" if all_compared else "No output differs, but some are skipped:"

    def __str__(self) -> str:
        return "\n".join([self._title, format_rows(self.outputs), *([] if self.ok else [self.location])])

    def _repr_html_(self) -> str:
        location = "" if self.ok else f"<pre>{escape(self.location)}</pre>"
        return f"<p>{self._title}</p>{OutputRows(self.outputs)._repr_html_()}{location}"


def _shown(path: Sequence[ValueDifference]) -> Sequence[ValueDifference]:
    """The first and last steps of a long path."""
    if len(path) <= _SHOWN_STEPS:
        return path
    half = _SHOWN_STEPS // 2
    return [*path[:half], *path[-half:]]


def _error(error: float | None) -> str:
    return "      -" if error is None else f"{error:.1e}"


def source_text(location: str) -> str:
    """The text of a source line ``file.py:12``, or "" if the file is not available."""
    file, _, line = location.rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdigit() else ""
