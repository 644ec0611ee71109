"""Helpers to match nodes in fusion patterns and to insert their replacements."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.onnx.ops  # defines the operator that stands for any ONNX operator

from fxonnx_translations._builder.dtypes import from_torch
from fxonnx_translations._torch_compat import pytree

from ..._provenance import copy_provenance
from ..graph_utils import insert_call

__all__ = [
    "CASTS",
    "FLOATS",
    "HALF_FLOATS",
    "VIEWS",
    "as_call",
    "bounds_of",
    "dims_of",
    "dtype_of",
    "half_source",
    "has_one_user",
    "insert_after",
    "insert_before",
    "insert_onnx_op",
    "is_last_axis",
    "is_same_dtype_cast",
    "is_vector_of",
    "known_number",
    "narrowed_user",
    "operand",
    "same_dims",
    "value_of",
]

aten = torch.ops.aten

VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
"""Operators that only change the shape of a tensor."""

CASTS = (aten.to.dtype, aten.to.dtype_layout, aten._to_copy.default, aten.to.device, aten.type_as.default)
"""Operators that may change the dtype of a tensor, and nothing else."""

HALF_FLOATS = (torch.float16, torch.bfloat16)
"""Half-precision dtypes, in which models compute parts in float32 between casts."""

FLOATS = (*HALF_FLOATS, torch.float32, torch.float64)
"""Dtypes that patterns of floating-point operators match."""


def as_call(node: Any, *targets: Any) -> torch.fx.Node | None:
    """The node if it is a call of one of the operators, otherwise None."""
    is_call = isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target in targets
    return node if is_call else None


def is_last_axis(axes: Any, x: torch.fx.Node) -> bool:
    """Whether a list of axes is the last axis of a tensor."""
    return axes in ([-1], [len(dims_of(x) or ()) - 1])


def is_vector_of(vector: torch.fx.Node, x: torch.fx.Node) -> bool:
    """Whether a tensor has an element for each of those of another one's last axis, and its dtype."""
    return dims_of(vector) == (dims_of(x) or ())[-1:] and dtype_of(vector) == dtype_of(x)


def has_one_user(node: torch.fx.Node) -> bool:
    """Whether a node has exactly one user."""
    return len(node.users) == 1


def known_number(value: Any) -> float | None:
    """A constant number as float; None for nodes and bools."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def dims_of(node: Any) -> tuple[Any, ...] | None:
    """The shape of a node's tensor; None if its value is not a tensor."""
    val = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return tuple(val.shape) if isinstance(val, torch.Tensor) else None


def dtype_of(node: Any) -> torch.dtype | None:
    """The dtype of a node's tensor; None if its value is not a tensor."""
    val = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return val.dtype if isinstance(val, torch.Tensor) else None


def same_dims(node: Any, dims: Sequence[Any]) -> bool:
    """Whether a tensor has a shape, compared as expressions."""
    return [*map(str, dims_of(node) or ())] == [*map(str, dims)]


def operand(node: Any, position: int = 0) -> torch.fx.Node:
    """An argument of a node that is a node."""
    return cast("torch.fx.Node", node.args[position])


def bounds_of(node: torch.fx.Node) -> tuple[int, int, int, int] | None:
    """The axis, start, end and step of a slice, the axis and bounds as indices from the first; None if dynamic."""
    given: Any = (*node.args[1:], *(0, None, None, 1)[len(node.args) - 1 :])
    axis, start, end, step = given
    dims = dims_of(node.args[0]) or ()
    size = dims[axis]
    bounds = (0 if start is None else start, size if end is None else end)
    if not all(isinstance(bound, int) for bound in (size, *bounds, step)):
        return None
    first, last = (min(max(bound + size if bound < 0 else bound, 0), size) for bound in bounds)
    return axis % len(dims), first, last, step


def value_of(node: Any) -> torch.Tensor:
    """The fake tensor of a node whose value is one."""
    return cast("torch.Tensor", node.meta["val"])


def half_source(node: Any) -> torch.fx.Node | None:
    """The half-precision tensor that a node is the cast of to float32; None for other nodes."""
    cast = as_call(node, *CASTS)
    if cast is None or dtype_of(cast) != torch.float32 or dtype_of(cast.args[0]) not in HALF_FLOATS:
        return None
    return cast.args[0]  # type: ignore[return-value]


def narrowed_user(node: torch.fx.Node, dtype: torch.dtype | None) -> torch.fx.Node | None:
    """The only user of a node if it is a cast to a dtype, otherwise None."""
    cast = as_call(next(iter(node.users), None), *CASTS)
    if cast is None or not has_one_user(node) or cast.args[0] is not node or dtype_of(cast) != dtype:
        return None
    return cast


def is_same_dtype_cast(node: Any) -> bool:
    """Whether a node is a cast to the dtype of its input."""
    cast = as_call(node, *CASTS)
    if cast is None or not isinstance(cast.args[0], torch.fx.Node):
        return False
    return bool(cast.args[0].meta["val"].dtype == cast.meta["val"].dtype)


def insert_after(node: torch.fx.Node, target: Any, args: tuple[Any, ...], **kwargs: Any) -> torch.fx.Node:
    """Insert a call after a node that replaces it: the call has the node's value and provenance."""
    with node.graph.inserting_after(node):
        new = node.graph.call_function(target, args, kwargs)
    new.meta["val"] = node.meta["val"]
    copy_provenance(new, node)
    return new


def insert_before(
    before: torch.fx.Node,
    target: Any,
    *args: Any,
    origin: torch.fx.Node | None = None,
    value: torch.Tensor | None = None,
) -> torch.fx.Node:
    """Insert a call before a node.

    Args:
        before: The node.
        target: The operator.
        args: Its arguments.
        origin: The node whose provenance the call gets; by default the one before which it is inserted.
        value: Its fake value where that is known; by default it is computed, which takes longer than all the rest.
    """
    vals = torch.fx.map_arg(args, lambda node: node.meta["val"]) if value is None else ()
    val: Any
    if value is not None:
        val = value
    elif target is operator.getitem:
        val = vals[0][vals[1]]
    else:
        tensor = next(val for val in pytree.tree_leaves(vals) if isinstance(val, torch.Tensor))
        with tensor.fake_mode:  # type: ignore[attr-defined]
            val = _reshaped(*vals) if target is torch.ops.aten.reshape.default else target(*vals)
    return insert_call(before, target, args, val=val, origin=origin)


def _reshaped(source: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """The fake result of a reshape. torch's own kernel would guard on sizes of 1 in the example inputs."""
    is_open = [isinstance(size, int) and size == -1 for size in shape]
    known = math.prod(size for size, unknown in zip(shape, is_open, strict=True) if not unknown)
    rest: Any = math.prod(source.shape) // known if any(is_open) else None
    return source.new_empty([rest if unknown else size for size, unknown in zip(shape, is_open, strict=True)])


_KINDS = {int: "i", float: "f", str: "s"}


def insert_onnx_op(
    origin: torch.fx.Node,
    op_type: str,
    inputs: Sequence[torch.fx.Node | None],
    attributes: Mapping[str, int | float | str],
    results: Sequence[torch.Tensor],
    domain: str = "com.microsoft",
) -> list[torch.fx.Node]:
    """Insert an operator before a node.

    Args:
        origin: The node, whose provenance the new ones get.
        op_type: Name of the operator.
        inputs: Its inputs; None for those that are omitted.
        attributes: Its attributes.
        results: Fake values of its outputs.
        domain: Its domain.

    Returns:
        The nodes of the outputs.
    """
    values: dict[str, list[Any]] = {"i": [], "f": [], "s": []}
    kinds, positions = [], []
    for value in attributes.values():
        kind = _KINDS[type(value)]
        kinds.append(kind)
        positions.append([len(values[kind]), len(values[kind]) + 1])
        values[kind].append(value)
    dtypes = [int(from_torch(result.dtype)) for result in results]
    options = {
        "shapes": [],
        "attr_keys": list(attributes),
        "attr_types": kinds,
        "attr_pos": positions,
        "attr_ints": values["i"],
        "attr_floats": values["f"],
        "attr_strs": values["s"],
        "metadata_props_keys": [],
        "metadata_props_values": [],
        "domain": domain,
        "version": 1 if domain else None,
    }
    target = torch.ops.onnx_symbolic._symbolic_multi_out.default
    node = insert_call(origin, target, (list(inputs), op_type, dtypes), options, val=list(results))
    return [insert_call(origin, operator.getitem, (node, index), val=val) for index, val in enumerate(results)]
