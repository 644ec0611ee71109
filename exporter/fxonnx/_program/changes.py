"""Changes of an exported model: other names of dims, and onnxscript's optimizer."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import torch

from .._comparison import compare
from .._lower.inlining import flat_shapes
from .._lower.model import OUTPUT_DIMS_KEY
from .._warnings import warn_user
from ..errors import ArgumentError, VerificationError, did_you_mean, kind_of
from .session import Session

__all__ = ["optimize_model", "rename_dims"]


def rename_dims(model: ir.Model, mapping: Mapping[Any, str]) -> dict[str, str]:
    """Rename dims in all shapes of a model, including expressions such as ``2*n + 1``.

    Args:
        model: The model; it is modified.
        mapping: Dim name or ``ir.SymbolicDim`` to new name. Names that no dim has are ignored, with a warning.

    Returns:
        The mapping from old to new names.

    Raises:
        ArgumentError: If a key is not a name or ``ir.SymbolicDim``, or a new name is empty, a number or taken.
    """
    if not isinstance(mapping, Mapping):
        raise ArgumentError("rename_mapping", f"expected a dict, got {kind_of(mapping)}", hint='write {"n": "batch"}')
    names = {_name(key): _checked(new) for key, new in mapping.items()}
    shapes = list(_shapes(model))
    present = {token for shape in shapes for dim in shape for token in re.findall(r"\w[\w ]*\w|\w", _text(dim))}
    for old, new in names.items():
        if new in present and new not in names and old in present and old != new:
            raise ArgumentError("rename_mapping", f"{new!r} is already the name of another dim")
    _warn_of_absent(names, shapes, present)
    if not names:
        return names
    alternatives = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    # One simultaneous substitution, so that names can be swapped.
    pattern = re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)")

    def renamed(text: str) -> str:
        return pattern.sub(lambda match: names[match[0]], text)

    for shape in shapes:
        for axis, dim in enumerate(shape):
            text = _text(dim)
            if text:
                shape[axis] = renamed(text)
    if OUTPUT_DIMS_KEY in model.metadata_props:
        outputs = json.loads(model.metadata_props[OUTPUT_DIMS_KEY])
        sizes = {name: {axis: renamed(size) for axis, size in axes.items()} for name, axes in outputs.items()}
        model.metadata_props[OUTPUT_DIMS_KEY] = json.dumps(sizes)
    return names


def _warn_of_absent(names: Mapping[str, str], shapes: Sequence[ir.Shape], present: Collection[str]) -> None:
    texts = {_text(dim) for shape in shapes for dim in shape}
    for old in names:
        # Not only names: a key may be a whole expression.
        if not any(re.search(rf"(?<!\w){re.escape(old)}(?!\w)", text) for text in texts):
            known = f"the dim names are: {', '.join(sorted(name for name in present if name.isidentifier())) or 'none'}"
            text = f"rename_mapping: no dim of the model is named {old!r}; it is ignored"
            warn_user(f"{text}\nhint: {did_you_mean(old, present, known)}")


def _name(key: Any) -> str:
    if isinstance(key, ir.SymbolicDim):
        return str(key.value)
    if isinstance(key, str):
        return key
    raise ArgumentError(
        "rename_mapping", f"Invalid key type in rename_mapping: {type(key)}({key!r}). Expected str or ir.SymbolicDim."
    )


def _checked(new: Any) -> str:
    if not isinstance(new, str) or not new or new.isdigit():
        raise ArgumentError("rename_mapping", f"expected a dim name, got {new!r}")
    return new


def _text(dim: Any) -> str:
    return "" if isinstance(dim, int) or dim.value is None else str(dim.value)


def _shapes(model: ir.Model) -> Iterator[ir.Shape]:
    seen: set[int] = set()
    graphs: list[Any] = [model.graph, *model.functions.values()]
    for graph in graphs:
        values = list(graph.inputs)
        for node in graph.all_nodes():
            values += node.outputs
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    # Not +=, for which onnx_ir's list of inputs has an operator that raises.
                    values.extend(attribute.as_graph().inputs)
        for value in values:
            if value.shape is not None and not value.shape.frozen and id(value.shape) not in seen:
                seen.add(id(value.shape))
                yield value.shape
    yield from (shape for shape in flat_shapes(model) if not shape.frozen and id(shape) not in seen)


def optimize_model(model: ir.Model, inputs: Sequence[Any] | None) -> ir.Model | None:
    """Run onnxscript's optimizer on a copy of a model.

    Args:
        model: The model; it is not modified.
        inputs: A value for each graph input, on which to compare the outputs; None to skip the comparison.

    Returns:
        The optimized model; None, with a warning that gives the reason, if the optimizer fails or an output changes.
    """
    from onnxscript import optimizer

    copy = model.clone()
    try:
        with _without_defaults(copy.graph):
            optimizer.optimize(copy)
        if inputs is not None:
            _check_same(model, _run(model, inputs), _run(copy, inputs))
    except Exception as error:  # noqa: BLE001 - rewrite rules may raise anything; the model is unchanged
        warn_user(f"the optimizer was not applied: {type(error).__name__}: {error}")
        return None
    return copy


@contextmanager
def _without_defaults(graph: ir.Graph) -> Iterator[None]:
    """Remove the default values of graph inputs for the body, so that the optimizer does not fold them."""
    defaults = {value: value.const_value for value in graph.inputs if str(value.name) in graph.initializers}
    for value in defaults:
        del graph.initializers[str(value.name)]
        value.const_value = None
    yield
    for value, constant in defaults.items():
        value.const_value = constant
        graph.register_initializer(value)


def _check_same(model: ir.Model, before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> None:
    names = [str(value.name) for value in model.graph.outputs]
    wrong = [row for row in compare(names, before, after) if row.status != "ok"]
    if wrong:
        raise VerificationError(f"output {wrong[0].name!r} changed: {wrong[0].message}", rows=wrong)


def _run(model: ir.Model, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    session = Session(model)
    try:
        return session.run(inputs)
    finally:
        session.close()
