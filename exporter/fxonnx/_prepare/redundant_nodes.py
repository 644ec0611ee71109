"""Remove nodes that a graph does not need: identities, and calls that are equal to one before."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import BuiltinFunctionType, MappingProxyType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from fxonnx_translations._torch_compat import OpOverload

from .sizes import same_shape

__all__ = ["eliminate_common_subexpressions", "eliminate_identities"]

aten = torch.ops.aten

_COPIES = frozenset({aten.contiguous.default, aten.clone.default, aten.alias.default, aten.detach.default})
_CASTS = frozenset({aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten._to_copy.default})
_RESHAPES = frozenset({aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.expand.default})
_DROPOUTS = frozenset({aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default})


def eliminate_identities(graph: torch.fx.Graph) -> None:
    """Replace identity operators by their inputs.

    Args:
        graph: A functional graph; changed in place.
    """
    for node in graph.nodes:
        if node.op == "call_function" and _is_identity(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _is_identity(node: torch.fx.Node) -> bool:
    kind = node.target
    # A view of the storage depends on the layout of the copy.
    if any(user.target is aten.as_strided.default for user in node.users):
        return False
    if kind not in _COPIES and kind not in _CASTS and kind not in _RESHAPES and kind not in _DROPOUTS:
        return kind is aten.slice.Tensor and _is_full_slice(node)
    source = node.args[0]
    given = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
    result = node.meta.get("val")
    # A complex tensor may be lazily conjugated, which copies resolve.
    if not isinstance(given, torch.Tensor) or not isinstance(result, torch.Tensor) or given.is_complex():
        return False
    if kind in _DROPOUTS:
        return bool(node.args[2] is False or node.args[1] == 0)
    return given.dtype == result.dtype and same_shape(given, result)


def _is_full_slice(node: torch.fx.Node) -> bool:
    given: list[Any] = [*node.args, *(0, None, None, 1)[len(node.args) - 1 :]]
    source, axis, first, last, step = given
    if node.kwargs or first not in (0, None) or step != 1 or not isinstance(axis, int):
        return False
    size = source.meta["val"].shape[axis]
    return last is None or (isinstance(last, int) and (last == 2**63 - 1 or (isinstance(size, int) and last >= size)))


_DTYPE_ONLY = frozenset(
    {torch.ops.aten.new_zeros.default, torch.ops.aten.new_ones.default, torch.ops.aten.new_full.default}
)
"""Operators that use only the dtype of their tensor argument."""

_RESHAPING = frozenset(
    {
        torch.ops.aten.view.default,
        torch.ops.aten.reshape.default,
        torch.ops.aten.unsqueeze.default,
        torch.ops.aten.flatten.using_ints,
    }
)
_TRANSPOSES = frozenset(
    {
        torch.ops.aten.t.default,
        torch.ops.aten.numpy_T.default,
        torch.ops.aten.mT.default,
        torch.ops.aten.permute.default,
        torch.ops.aten.transpose.int,
    }
)

_MAX_COMPARED_ELEMENTS = 64

_NOT_REPEATABLE = (
    torch.Tag.nondeterministic_seeded,
    # Each result has its own unbacked symbol in the captured program.
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
)


_READABLE = frozenset({torch.bool, torch.int8, torch.uint8, torch.int16, torch.uint16, torch.float16, torch.bfloat16})


def _numbers(constant: torch.Tensor) -> str:
    """Return a text that is equal for equal elements."""
    dtype = constant.dtype
    if dtype.itemsize <= 2 and dtype not in _READABLE:
        # torch cannot read the elements of sub-byte dtypes.
        constant = constant.view(torch.uint8 if dtype.itemsize == 1 else torch.int16)
    return repr(constant.tolist())


def eliminate_common_subexpressions(
    graph: torch.fx.Graph, constants: Mapping[str, torch.Tensor] = MappingProxyType({})
) -> int:
    """Replace calls of the same operator with the same arguments by the first such call.

    Args:
        graph: A functional graph; changed in place.
        constants: Tensors of placeholders by name; small equal ones count as the same argument.

    Returns:
        The number of removed nodes.
    """
    first: dict[Any, torch.fx.Node] = {}
    for node in graph.find_nodes(op="placeholder"):
        constant = constants.get(node.name)
        if constant is not None and constant.numel() <= _MAX_COMPARED_ELEMENTS:
            known = first.setdefault((constant.dtype, constant.shape, _numbers(constant)), node)
            if known is not node:
                node.replace_all_uses_with(known)
    removed = 0
    for node in list(graph.nodes):
        if not _is_repeatable(node):
            continue
        args = node.args
        if node.target in _DTYPE_ONLY:
            args = (args[0].meta["val"].dtype, *args[1:])
        key = _weight_view_key(node) or (node.target, _key(args), _key(node.kwargs))
        known = first.setdefault(key, node)
        if known is not node and _unbacked(node) == _unbacked(known):
            node.replace_all_uses_with(known)
            graph.erase_node(node)
            removed += 1
    return removed


def _unbacked(node: torch.fx.Node) -> set[Any]:
    """The symbols of data-dependent sizes in a result: each slice with such bounds has its own, which others use."""
    return set(free_unbacked_symbols(node.meta.get("val")))


def _weight_view_key(node: torch.fx.Node) -> Any:
    """A key of a transposed or reshaped weight by its result, so that ``w.t()`` and ``w.permute(1, 0)`` are equal."""
    source, val = node.args[0] if node.args else None, node.meta.get("val")
    if not isinstance(source, torch.fx.Node) or source.op != "placeholder" or not isinstance(val, torch.Tensor):
        return None
    if node.target in _RESHAPING and all(type(size) is int for size in val.shape):
        return "reshape", source, tuple(val.shape)
    if node.target in _TRANSPOSES:
        # Strides that number the axes: the operator itself computes the permutation.
        axes = torch.empty_strided([1] * val.dim(), list(range(val.dim())), device="meta")
        return "permute", source, node.target(axes, *node.args[1:], **node.kwargs).stride()
    return None


def _is_repeatable(node: torch.fx.Node) -> bool:
    if node.op != "call_function" or not node.users:
        return False
    target = node.target
    if isinstance(target, OpOverload):
        return not target._schema.is_mutable and not any(tag in target.tags for tag in _NOT_REPEATABLE)
    # Size arithmetic, and items of a multi-output call.
    return target is operator.getitem or isinstance(target, BuiltinFunctionType)


def _key(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return value
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in value.items())
    if isinstance(value, list | tuple | slice):
        parts = (value.start, value.stop, value.step) if isinstance(value, slice) else value
        return type(value).__name__, *map(_key, parts)
    # By repr, since True == 1 == 1.0 and -0.0 == 0.0.
    return type(value), repr(value)
