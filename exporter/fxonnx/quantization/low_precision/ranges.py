"""Interval analysis: the integers that a tensor may contain, whatever the contents of the weights are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from ..._nodes import function_of
from ..._prepare.graph_utils import uncomputed
from ..._prepare.sizes import element_count, known_size
from ..._provenance import copy_provenance

__all__ = [
    "CONVERSIONS",
    "MOVEMENTS",
    "Layout",
    "Path",
    "Ranges",
    "block_of",
    "limited_input",
    "positions_of",
    "replayed",
]

aten = torch.ops.aten

Range: TypeAlias = tuple[int, int]

MOVEMENTS = frozenset(
    {
        aten.alias.default,
        aten.clone.default,
        aten.contiguous.default,
        aten.detach.default,
        aten.expand.default,
        aten.flatten.using_ints,
        aten.index.Tensor,
        aten.index_select.default,
        aten.mT.default,
        aten.numpy_T.default,
        aten.permute.default,
        aten.repeat.default,
        aten.repeat_interleave.self_int,
        aten.reshape.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.t.default,
        aten.transpose.int,
        aten.unflatten.int,
        aten.unsqueeze.default,
        aten.view.default,
        aten._unsafe_view.default,
    }
)
"""Operators that move, repeat or select elements of their first argument."""

_CASTS = frozenset({aten.to.dtype, aten.type_as.default, aten._to_copy.default})
_ROUNDINGS = frozenset({aten.round.default, aten.floor.default, aten.ceil.default, aten.trunc.default})
_AND = frozenset({aten.bitwise_and.Scalar, aten.bitwise_and.Tensor, aten.__and__.Scalar, aten.__and__.Tensor})
_OR = frozenset({aten.bitwise_or.Scalar, aten.bitwise_or.Tensor, aten.__or__.Scalar, aten.__or__.Tensor})
_RIGHT = frozenset(
    {
        aten.bitwise_right_shift.Tensor,
        aten.bitwise_right_shift.Tensor_Scalar,
        aten.__rshift__.Scalar,
        aten.__rshift__.Tensor,
    }
)
_LEFT = frozenset(
    {
        aten.bitwise_left_shift.Tensor,
        aten.bitwise_left_shift.Tensor_Scalar,
        aten.__lshift__.Scalar,
        aten.__lshift__.Tensor,
    }
)
_ADD, _SUB = frozenset({aten.add.Tensor, aten.add.Scalar}), frozenset({aten.sub.Tensor, aten.sub.Scalar})
_MUL = frozenset({aten.mul.Tensor, aten.mul.Scalar})
_CLAMPS = frozenset({aten.clamp.default, aten.clamp.Tensor})
_MIN, _MAX = (
    frozenset({aten.minimum.default, aten.clamp_max.default}),
    frozenset({aten.maximum.default, aten.clamp_min.default}),
)
_JOINS = frozenset({aten.cat.default, aten.stack.default})
_GREATER = frozenset({aten.gt.Tensor, aten.gt.Scalar, aten.ge.Tensor, aten.ge.Scalar})
_LESS = frozenset({aten.lt.Tensor, aten.lt.Scalar, aten.le.Tensor, aten.le.Scalar})
_UNINITIALIZED = frozenset({aten.empty.memory_format})
_INFINITE = math.inf
_OF_FIRST = MOVEMENTS | _CASTS | _ROUNDINGS | {aten.view.dtype}
"""The range of the result depends on the first argument's only."""


class Ranges:
    """The ranges of the integer-valued tensors of a graph, computed on demand.

    Args:
        constants: Tensors of the constant nodes; weights are not constants.
        number_of: Returns the tensor of a node that is computed from numbers only, or None.
    """

    def __init__(
        self, constants: Mapping[Node, torch.Tensor], number_of: Callable[[Node], torch.Tensor | None]
    ) -> None:
        self._constants = constants
        self._number_of = number_of
        self._known: dict[Node, Any] = {}

    def of(self, value: Any) -> tuple[float, float] | None:
        """Return the smallest and the largest possible element; None if elements may not be integers.

        Ends may be infinite, as of ``round``.
        """
        if isinstance(value, (bool, int)):
            return int(value), int(value)
        if isinstance(value, float):
            return (value, value) if value.is_integer() or math.isinf(value) else None
        if not isinstance(value, Node) or not isinstance(value.meta.get("val"), torch.Tensor):
            return None
        if value not in self._known:
            # Ranges are computed from the inputs', which are known then.
            for node in uncomputed(value, self._known, self._inputs):
                self._known[node] = self._computed(node)
        known: tuple[float, float] | None = self._known[value]
        return known

    def _inputs(self, node: Node) -> Iterable[Node]:
        """The nodes whose ranges the range of a node is computed from."""
        if node in self._constants or node.target not in _UNDERSTOOD:
            return ()
        if node.target in _OF_FIRST:
            found = node.all_input_nodes[:1]
        elif node.target is aten.slice_scatter.default:
            start, sources, _ = _overwritten(node)
            found = [part for part in (start, *sources) if isinstance(part, Node)]
        else:
            found = list(node.all_input_nodes)
            if node.target is aten.where.self:
                found += [part for source in found for part in source.all_input_nodes]
        return found

    def _computed(self, node: Node) -> tuple[float, float] | None:
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor):
            return None
        found = self._compute(node)
        return _limits(val.dtype) if found is None else _in_dtype(found, val.dtype)

    def _compute(self, node: Node) -> tuple[float, float] | None:
        constant = self._constants.get(node)
        if constant is None and element_count(node.meta["val"]) == 1:
            # The codes are checked while saving: another model may have other numbers.
            constant = self._number_of(node)
        if constant is not None:
            return _of_constant(constant)
        if node.op != "call_function" or node.target not in _UNDERSTOOD:
            return None
        target, args = node.target, node.args
        if target in MOVEMENTS or target in _CASTS:
            return self.of(args[0])
        if target is aten.view.dtype:
            return self._reinterpreted(node)
        if target in _ROUNDINGS:
            return self.of(args[0]) or (-_INFINITE, _INFINITE)
        if target is aten.slice_scatter.default:
            return self._scattered(node)
        if target in _JOINS:
            pieces: Any = args[0]
            return _union(*map(self.of, pieces))
        if target is aten.where.self:
            return self._selected(node)
        if target in _AND:
            return self._masked(*map(self.of, args))
        operands = [self.of(argument) for argument in args[:2]]
        rule = _RULES.get(target)
        if target in _CLAMPS or rule is not None:
            low, high = ([*args[1:], None, None][:2]) if target in _CLAMPS else (None, None)
            if target in _CLAMPS:
                return _clamped(operands[0], _number(self, low, node, "min"), _number(self, high, node, "max"))
            if node.kwargs.get("alpha", 1) != 1 or len(args) > 2 or len(operands) < 2 or None in operands:
                return None
            return None if rule is None else rule(*operands)
        return None

    def _reinterpreted(self, node: Node) -> tuple[float, float] | None:
        """Bits as another integer dtype of the same size: nonnegative numbers that both dtypes have are kept."""
        known, source = self.of(node.args[0]), node.args[0]
        limits = _limits(node.meta["val"].dtype)
        if known is None or limits is None or not isinstance(source, Node):
            return None
        is_same_size = source.meta["val"].element_size() == node.meta["val"].element_size()
        return known if is_same_size and known[0] >= 0 and known[1] <= limits[1] else None

    def _masked(self, one: tuple[float, float] | None, two: tuple[float, float] | None) -> tuple[float, float] | None:
        """And with a nonnegative number is between 0 and that number, whatever the other operand is."""
        highs = [known[1] for known in (one, two) if known is not None and known[0] >= 0]
        return (0, min(highs)) if highs else None

    def _selected(self, node: Node) -> tuple[float, float] | None:
        """``where``, in particular a limit: ``where(x > limit, limit, x)``."""
        condition, chosen, other = node.args[:3]
        both = _union(self.of(chosen), self.of(other))
        if both is None or not isinstance(condition, Node) or condition.args[:1] != (other,):
            return both
        limit, compared = self.of(chosen), self.of(condition.args[1])
        if limit is None or compared is None or limit != compared or limit[0] != limit[1]:
            return both
        low, high = self.of(other) or both
        if condition.target in _GREATER:
            return min(low, limit[0]), min(high, limit[0])
        return (max(low, limit[0]), max(high, limit[0])) if condition.target in _LESS else both

    def _scattered(self, node: Node) -> tuple[float, float] | None:
        """Slices written to a tensor; its earlier elements count unless they are all overwritten."""
        start, sources, is_covered = _overwritten(node)
        pieces = [self.of(source) for source in sources]
        return _union(*pieces) if is_covered else _union(*pieces, self._initial(start))

    def _initial(self, value: Any) -> tuple[float, float] | None:
        if isinstance(value, Node) and value.target in _UNINITIALIZED:
            return None
        if isinstance(value, Node) and value.target is aten.zeros.default:
            return 0, 0
        return self.of(value)


def _overwritten(node: Node) -> tuple[Any, list[Any], bool]:
    """Return the start of a chain of writes to slices along one axis, the values, and whether they cover it.

    A write to a slice that is not known at every size is a chain of its own.
    """
    dim: Any = node.args[2] if len(node.args) > 2 else 0
    size = known_size(node.meta["val"].shape[dim])
    values: list[Any] = []
    covered: set[int] = set()
    current: Any = node
    while size is not None and isinstance(current, Node) and current.target is aten.slice_scatter.default:
        limits: tuple[Any, ...] = tuple(current.args[2:])
        axis, start, end, step = limits + (0, None, None, 1)[len(limits) :]
        if axis != dim or not all(limit is None or isinstance(limit, int) for limit in (start, end, step)):
            break
        covered.update(range(*slice(start, end, step).indices(size)))
        values.append(current.args[1])
        current = current.args[0]
    if current is node:
        return node.args[0], [node.args[1]], False
    return current, values, len(covered) == size


def limited_input(node: Node, ranges: Ranges) -> tuple[Node, list[Node]] | None:
    """Return the input of a node that limits it to an interval, and the tensors that are its ends; None for others."""
    args = node.args
    if node.target is aten.where.self:
        condition, chosen, other = args[:3]
        if not isinstance(condition, Node) or not isinstance(other, Node) or condition.args[:1] != (other,):
            return None
        ends = [chosen, condition.args[1]]
        limits = {ranges.of(end) for end in ends}
        is_single = len(limits) == 1 and all(known is not None and known[0] == known[1] for known in limits)
        is_limit = is_single and condition.target in (*_GREATER, *_LESS)
        return (other, _before_casts(ends)) if is_limit else None
    if node.target not in (*_CLAMPS, *_MIN, *_MAX) or not isinstance(args[0], Node):
        return None
    ends = [end for end in (*args[1:], *node.kwargs.values()) if end is not None]
    if any((known := ranges.of(end)) is None or known[0] != known[1] for end in ends):
        return None
    return args[0], _before_casts(ends)


def _before_casts(ends: list[Any]) -> list[Node]:
    found = []
    for end in ends:
        while isinstance(end, Node) and end.target in _CASTS:
            end = end.args[0]
        if isinstance(end, Node):
            found.append(end)
    return found


def _number(ranges: Ranges, argument: Any, node: Node, name: str) -> tuple[float, float] | None:
    return ranges.of(node.kwargs.get(name) if argument is None else argument)


def _union(*ranges: tuple[float, float] | None) -> tuple[float, float] | None:
    known = [found for found in ranges if found is not None]
    if not known or len(known) < len(ranges):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _clamped(
    value: tuple[float, float] | None, low: tuple[float, float] | None, high: tuple[float, float] | None
) -> tuple[float, float] | None:
    if value is None:
        return None
    least = -_INFINITE if low is None else low[0]
    most = _INFINITE if high is None else high[1]
    return min(max(value[0], least), most), max(min(value[1], most), least)


def _shifted(one: tuple[float, float], two: tuple[float, float]) -> tuple[float, float] | None:
    if math.isinf(one[0]) or math.isinf(one[1]) or two[0] < 0 or math.isinf(two[1]):
        return None
    ends = [int(end) >> int(count) for end in one for count in two]
    return min(ends), max(ends)


def _shifted_left(one: tuple[float, float], two: tuple[float, float]) -> tuple[float, float] | None:
    if one[0] < 0 or math.isinf(one[1]) or not 0 <= two[0] <= two[1] < 32:
        return None
    return int(one[0]) << int(two[0]), int(one[1]) << int(two[1])


def _joined_bits(one: tuple[float, float], two: tuple[float, float]) -> tuple[float, float] | None:
    if one[0] < 0 or two[0] < 0 or math.isinf(max(one[1], two[1])):
        return None
    return 0, 2 ** int(max(one[1], two[1])).bit_length() - 1


def _product(one: tuple[float, float], two: tuple[float, float]) -> tuple[float, float] | None:
    if any(map(math.isinf, (*one, *two))):
        return None
    ends = [first * second for first in one for second in two]
    return min(ends), max(ends)


_RULES: Mapping[Any, Callable[[Any, Any], tuple[float, float] | None]] = {
    **dict.fromkeys(_ADD, lambda one, two: (one[0] + two[0], one[1] + two[1])),
    **dict.fromkeys(_SUB, lambda one, two: (one[0] - two[1], one[1] - two[0])),
    **dict.fromkeys(_MUL, _product),
    **dict.fromkeys(_RIGHT, _shifted),
    **dict.fromkeys(_LEFT, _shifted_left),
    **dict.fromkeys(_OR, _joined_bits),
    **dict.fromkeys(_MIN, lambda one, two: (min(one[0], two[0]), min(one[1], two[1]))),
    **dict.fromkeys(_MAX, lambda one, two: (max(one[0], two[0]), max(one[1], two[1]))),
}


_UNDERSTOOD = frozenset({*_OF_FIRST, *_JOINS, *_AND, *_CLAMPS, *_RULES, aten.slice_scatter.default, aten.where.self})


def _of_constant(tensor: torch.Tensor) -> tuple[float, float] | None:
    if not tensor.numel() or tensor.is_complex():
        return None
    if tensor.is_floating_point() and not torch.equal(tensor, tensor.round()):
        return None
    low, high = tensor.aminmax() if tensor.dtype != torch.bool else (tensor.all(), tensor.any())
    return low.item(), high.item()


def _limits(dtype: torch.dtype) -> Range | None:
    """Return the range of an integer dtype; None for others."""
    if dtype == torch.bool:
        return 0, 1
    if dtype.is_floating_point or dtype.is_complex:
        return None
    try:
        info = torch.iinfo(dtype)
    except TypeError:
        return None
    return int(info.min), int(info.max)


def _in_dtype(found: tuple[float, float], dtype: torch.dtype) -> tuple[float, float] | None:
    """Return the range after a conversion: integers wrap around, and large floating-point numbers are rounded."""
    limits = _limits(dtype)
    if limits is not None:
        return found if limits[0] <= found[0] and found[1] <= limits[1] else limits
    if not dtype.is_floating_point:
        return None
    exact = 1 / torch.finfo(dtype).eps
    # Rounded numbers of this size are integers as well.
    return found[0] if found[0] >= -exact else -_INFINITE, found[1] if found[1] <= exact else _INFINITE


Path: TypeAlias = tuple[Node, ...]
"""Operators that move or convert elements, each of which takes the result of the one before."""

CONVERSIONS = frozenset({aten.to.dtype, aten._to_copy.default})


@dataclass(frozen=True)
class Layout:
    """The layout of a parameter over a weight.

    Attributes:
        base: The parameter.
        positions: For each block of ``block``, the position of its number in the parameter.
        block: The sizes of the largest blocks with one number.
        checked: Index tensors that the layout was computed from, with their contents.
    """

    base: Node
    positions: torch.Tensor
    block: tuple[int, ...]
    checked: tuple[tuple[Node, torch.Tensor], ...] = field(default=())


def positions_of(
    shape: torch.Size,
    steps: Sequence[tuple[torch.Size | None, Path]],
    indices: Mapping[Node, torch.Tensor],
    memo: dict[Any, Any],
) -> tuple[torch.Tensor, tuple[int, ...]] | None:
    """Return the positions of the numbers of a parameter over a weight, one for each of the largest blocks.

    Args:
        shape: Shape of the parameter.
        steps: Shapes to broadcast to, or None, each with the operators that follow.
        indices: Contents of the index tensors.
        memo: Earlier results: the layers of a model have the same layouts.
    """
    key = (
        shape,
        tuple((target, tuple(_signature(node, indices) for node in path)) for target, path in steps),
    )
    if key not in memo:
        found = torch.arange(shape.numel(), dtype=torch.int32).reshape(shape)
        for target, path in steps:
            found = found if target is None else found.expand(target)
            for node in path:
                if node.target not in CONVERSIONS:
                    found = _moved(node, found, indices)
        block = tuple(_block_size(found, axis) for axis in range(found.dim()))
        memo[key] = (found[tuple(slice(None, None, size) for size in block)].long().contiguous(), block)
    result: tuple[torch.Tensor, tuple[int, ...]] = memo[key]
    return result


def _signature(node: Node, indices: Mapping[Node, torch.Tensor]) -> Any:
    def described(part: Any) -> Any:
        return indices[part].numpy().tobytes() if part in indices else None

    args = torch.fx.map_arg((node.args[1:], node.kwargs), described)
    return node.target, repr(args)


def _moved(node: Node, tensor: torch.Tensor, indices: Mapping[Node, torch.Tensor]) -> torch.Tensor:
    args, kwargs = torch.fx.map_arg((node.args[1:], node.kwargs), indices.__getitem__)
    # Contiguous: views of it have the same elements as in the model, whatever its strides are there.
    result: torch.Tensor = function_of(node)(tensor.contiguous(), *args, **kwargs)
    return result


def _block_size(positions: torch.Tensor, axis: int) -> int:
    """Return the size of the largest blocks of one axis without a change."""
    size = positions.shape[axis]
    changes = positions.narrow(axis, 1, size - 1) != positions.narrow(axis, 0, size - 1)
    others = [other for other in range(positions.dim()) if other != axis]
    changed = changes.sum(others) if others else changes
    return math.gcd(size, *(int(at) + 1 for at in changed.nonzero().flatten()))


def block_of(layout: Layout, counts: Sequence[int]) -> torch.Tensor:
    """Return the positions for smaller blocks, of which there are ``counts`` along each axis.

    An axis with one number for its whole length keeps one.
    """
    positions = layout.positions
    for axis, count in enumerate(counts):
        own = positions.shape[axis]
        if own not in (1, count):
            positions = positions.repeat_interleave(count // own, dim=axis)
    return positions.contiguous()


def replayed(node: Node, path: Path) -> Node:
    """Insert copies of operators that move elements, applied to another node; conversions are omitted."""
    for step in path:
        if step.target in CONVERSIONS:
            continue
        source = node
        node = step.graph.call_function(function_of(step), (source, *step.args[1:]), dict(step.kwargs))
        node.meta["val"] = step.meta["val"].to(source.meta["val"].dtype)
        copy_provenance(node, step)
    return node
