"""Two exports side by side: inputs, outputs, opsets, operators by module, weights and size."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import onnx_ir as ir

from .._display import Displayed, html_table, printable
from .._model_files import load_model, origin_of, type_text, weight_values
from .._public import public

if TYPE_CHECKING:
    import onnx

__all__ = ["GraphChange", "ModelDiff", "diff"]


class _HasModel(Protocol):
    """An ``ONNXProgram``."""

    @property
    def model(self) -> ir.Model:
        """The ONNX model."""


_AnyModel: TypeAlias = "str | os.PathLike[str] | ir.Model | onnx.ModelProto | _HasModel"

_SHOWN = 20
"""Number of changes of a kind that are printed."""


@public
@dataclass(frozen=True)
class GraphChange:
    """One difference between two models.

    Attributes:
        kind: "model", "input", "output", "operator" or "weight".
        name: Name of the property, input, output or initializer; for operators the module and the operator.
        first: Its form in the first model, "" if only the second one has it.
        second: Its form in the second model, "" if only the first one has it.
    """

    kind: str
    name: str
    first: str
    second: str

    def __str__(self) -> str:
        name, first, second = map(printable, (self.name, self.first, self.second))
        if not first:
            return f"+ {name}: {second}"
        return f"- {name}: {first}" if not second else f"  {name}: {first} -> {second}"


@public
@dataclass(frozen=True, repr=False)
class ModelDiff(Displayed):
    """The differences of two models.

    Attributes:
        changes: The differences: of the model, its inputs and outputs, operators and weights, in this order.
    """

    changes: tuple[GraphChange, ...]

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        if not self.changes:
            return "The models are the same."
        lines = []
        for kind in dict.fromkeys(change.kind for change in self.changes):
            found = [change for change in self.changes if change.kind == kind]
            lines += [_TITLES[kind], *(f"  {change}" for change in found[:_SHOWN])]
            if len(found) > _SHOWN:
                lines.append(f"  and {len(found) - _SHOWN} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if not self.changes:
            return f"<p>{self}</p>"
        rows = [(one.name, _TITLES[one.kind], one.first, one.second) for one in self.changes]
        return html_table("", rows, ("name", "kind", "first", "second"))


_TITLES = {
    "model": "Model",
    "input": "Inputs",
    "output": "Outputs",
    "operator": "Operators by module",
    "weight": "Weights and constants",
}


@public
def diff(first: _AnyModel, second: _AnyModel) -> ModelDiff:
    """Compare two ONNX models of any exporter.

    Operators are counted for each module, if the models have the metadata of torch.onnx. Weights are compared by name;
    one that has another name in the other model, or is stored as its transpose, is found by its content.

    Args:
        first: The path of an ONNX file, a model in memory or an ``ONNXProgram``.
        second: The other one.

    Raises:
        ArgumentError: If a file cannot be loaded, or a weight in an external file cannot be read.
    """
    # An ONNXProgram holds its model.
    models = [load_model(getattr(each, "model", each)) for each in (first, second)]
    changes = [
        *_changes("model", *map(_properties, models)),
        *_end_changes("input", *(_ends(model.graph.inputs) for model in models)),
        *_end_changes("output", *(_ends(model.graph.outputs) for model in models)),
        *_changes("operator", *map(_operators, models)),
        *_weight_changes(*map(_weights, models)),
    ]
    return ModelDiff(tuple(changes))


def _changes(kind: str, first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[GraphChange]:
    for name in dict.fromkeys([*first, *second]):
        before, after = first.get(name, ""), second.get(name, "")
        if before != after:
            yield GraphChange(kind, name, before, after)


def _end_changes(kind: str, first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[GraphChange]:
    yield from _changes(kind, first, second)
    if set(first) == set(second) and list(first) != list(second):
        yield GraphChange(kind, "(order)", ", ".join(first), ", ".join(second))


def _properties(model: ir.Model) -> dict[str, str]:
    properties = {f"opset {domain or 'ai.onnx'}": str(version) for domain, version in model.opset_imports.items()}
    properties["IR version"] = str(model.ir_version)
    properties["nodes"] = str(sum(1 for _ in _nodes(model)))
    properties["functions"] = str(len(model.functions))
    tensors = [value.const_value for value in model.graph.initializers.values()]
    properties["bytes of weights"] = f"{sum(tensor.nbytes for tensor in tensors if tensor is not None):,}"
    return properties


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        yield from ir.traversal.RecursiveGraphIterator(graph)


def _ends(values: Sequence[ir.Value]) -> dict[str, str]:
    ends = {}
    for value in values:
        dims = "?" if value.shape is None else ", ".join(str(_dim(dim)) for dim in value.shape)
        dtype = "?" if value.dtype is None else value.dtype.name
        ends[str(value.name)] = type_text(value, f"{dtype}[{dims}]")
    return ends


def _dim(dim: int | ir.SymbolicDim) -> int | str:
    return dim if isinstance(dim, int) else str(dim.value)


def _operators(model: ir.Model) -> dict[str, str]:
    """Module and operator to the number of nodes."""
    counts: Counter[str] = Counter()
    for node in _nodes(model):
        operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        counts[f"{origin_of(node)[0] or '(model)'}: {operator}"] += 1
    return {name: str(count) for name, count in sorted(counts.items())}


@dataclass(frozen=True)
class _Weight:
    """An initializer.

    Attributes:
        form: Element type and shape.
        values: Its elements.
    """

    form: str
    values: np.ndarray

    @property
    def digest(self) -> tuple[str, str]:
        """A key that is equal for equal weights."""
        return self.form, hashlib.sha256(np.ascontiguousarray(self.values).tobytes()).hexdigest()

    @property
    def transposed(self) -> _Weight | None:
        """The transpose of a matrix."""
        if self.values.ndim != 2:
            return None
        return _Weight(_form(self.form.partition("[")[0], self.values.T), self.values.T)


def _form(dtype: str, values: np.ndarray) -> str:
    return f"{dtype}[{', '.join(map(str, values.shape))}]"


def _weights(model: ir.Model) -> dict[str, _Weight]:
    found = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None:
            continue
        values = weight_values(name, tensor)
        found[name] = _Weight(_form(tensor.dtype.name, values), values)
    return found


def _weight_changes(first: Mapping[str, _Weight], second: Mapping[str, _Weight]) -> Iterator[GraphChange]:
    removed = {name: weight for name, weight in first.items() if name not in second}
    added = {name: weight for name, weight in second.items() if name not in first}
    known = {weight.digest: name for name, weight in added.items()}
    for name, weight in removed.items():
        other = known.get(weight.digest)
        transposed = None if other is not None or weight.transposed is None else known.get(weight.transposed.digest)
        if other is not None:
            yield GraphChange("weight", name, weight.form, f"the same as {other}")
        elif transposed is not None:
            yield GraphChange("weight", name, weight.form, f"the transpose of {transposed}")
        else:
            yield GraphChange("weight", name, weight.form, "")
            continue
        added.pop(other or str(transposed), None)
    for name, weight in first.items():
        if name in second and weight.digest != second[name].digest:
            yield GraphChange("weight", name, weight.form, _changed(weight, second[name]))
    for name, weight in added.items():
        yield GraphChange("weight", name, "", weight.form)


def _changed(weight: _Weight, other: _Weight) -> str:
    """The form of a weight with the same name, and how much its values differ."""
    if weight.form != other.form:
        return other.form
    before, after = (np.asarray(each.values, dtype=np.float64) for each in (weight, other))
    return f"{other.form}, values differ by up to {np.nanmax(np.abs(before - after)):.2g}"
