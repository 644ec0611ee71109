"""Views as functions of values: apply a view to its base, and write a value back through the view."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import Node, map_arg

from ..._nodes import function_of, operator_of
from ..graph_utils import fake_mode_of
from .emit import Emitter, arguments_with_defaults, refuse

__all__ = ["MultiOutputView", "OperatorView", "Span", "View", "ViewBase", "disjoint"]

aten = torch.ops.aten

# torch's slice end for "up to the end of the dim".
_UNBOUNDED = 2**63 - 1


@dataclass(frozen=True)
class ViewBase:
    """The base of a view during a write through the view.

    Attributes:
        val: Fake tensor of its shape and dtype.
        before: Returns the node with its content before the write.
        witness: Returns a node of its shape, with any content.
    """

    val: torch.Tensor
    before: Callable[[], Node]
    witness: Callable[[], Node]


@dataclass(frozen=True)
class Span:
    """The part ``start:stop:step`` of one dim; all numbers are known and not negative."""

    dim: int
    start: int
    stop: int
    step: int


def disjoint(left: Span | None, right: Span | None) -> bool:
    """Whether two parts of one tensor are known to share no element."""
    if left is None or right is None or left.dim != right.dim:
        return False
    if left.stop <= right.start or right.stop <= left.start:
        return True
    return left.step == right.step and (left.start - right.start) % left.step != 0


class View:
    """The identity view, and base class of the other views.

    Args:
        node: The node that creates the view.
        val: Fake tensor of the view.
    """

    def __init__(self, node: Node, val: torch.Tensor) -> None:
        self.node = node
        self.val = val

    def apply(self, emitter: Emitter, parent: Node, resolve: Callable[[Node], Node]) -> Node:
        """A node with the view of ``parent``.

        Args:
            emitter: Inserts nodes.
            parent: Content of the base.
            resolve: Returns the current content of the view's other arguments.
        """
        del emitter, resolve
        return parent

    def write_back(self, emitter: Emitter, base: ViewBase, value: Node) -> Node:
        """A node with the content of the base after ``value`` was written through the view."""
        del emitter, base
        return value

    def span(self, parent: torch.Tensor) -> Span | None:
        """The part of the parent that the view selects, if that is a known part of one dim."""
        del parent
        return None

    def repeats_elements(self) -> bool:
        """Whether an element of the parent may occur more than once, so that writes are ambiguous."""
        return False


class OperatorView(View):
    """The view returned by an operator of the graph.

    Args:
        node: The node that calls the operator.
        val: Fake tensor of the view.
        parent: The argument that is the base of the view.
    """

    def __init__(self, node: Node, val: torch.Tensor, parent: Node) -> None:
        super().__init__(node, val)
        self._parent = parent
        self._arguments = (node.args, dict(node.kwargs))
        self._is_placed = False
        self._name = operator_of(node).overloadpacket._qualified_op_name

    def place(self) -> None:
        """Keep the node at its position as the view's first value."""
        self._is_placed = True

    def apply(self, emitter: Emitter, parent: Node, resolve: Callable[[Node], Node]) -> Node:
        if self._name == "aten::as_strided":
            parent = _contiguous(emitter, self.node, parent)

        def replace(argument: Node) -> Node:
            return parent if argument is self._parent else resolve(argument)

        args, kwargs = map_arg(self._arguments, replace)
        if self._is_placed:
            return emitter.call(function_of(self.node), args, kwargs=kwargs, val=self.val, origin=self.node)
        self._is_placed = True
        self.node.args, self.node.kwargs = args, kwargs
        emitter.anchor.prepend(self.node)
        return self.node

    def write_back(self, emitter: Emitter, base: ViewBase, value: Node) -> Node:
        inverse = _INVERSES.get(self._name)
        if inverse is None:
            refuse(self.node, "writing through this view has no functional form")
        return inverse(_ViewWrite(emitter, self.node, base, value))

    def span(self, parent: torch.Tensor) -> Span | None:
        if self._name not in ("aten::select", "aten::slice", "aten::narrow"):
            return None
        arguments = arguments_with_defaults(self.node)
        size = parent.shape[arguments["dim"]]
        start = arguments["index"] if self._name == "aten::select" else arguments["start"]
        if self._name == "aten::slice":
            return _span(arguments["dim"] % parent.dim(), size, start, arguments["end"], arguments["step"])
        length = 1 if self._name == "aten::select" else arguments["length"]
        if not isinstance(start, int) or not isinstance(length, int):
            return None
        # A part at the end of the dim: stop would be 0, the beginning.
        stop = None if start < 0 and start + length == 0 else start + length
        return _span(arguments["dim"] % parent.dim(), size, start, stop, 1)

    def repeats_elements(self) -> bool:
        if self._name == "aten::unfold":
            arguments = arguments_with_defaults(self.node)
            return bool(arguments["step"] < arguments["size"])
        if self._name == "aten::as_strided":
            return not _is_injective(self.val)
        if self._name in ("aten::expand", "aten::expand_as", "aten::broadcast_to"):
            return _is_expanded(self.val)
        return False


class MultiOutputView(View):
    """One of the views returned by a multi-output operator such as ``split``.

    Args:
        node: The node that calls the operator.
        pieces: Fake tensors of all results.
        index: Position of this view among the results.
        parent: The argument that is the base of this view.
    """

    def __init__(self, node: Node, pieces: Sequence[torch.Tensor], index: int, parent: Node) -> None:
        super().__init__(node, pieces[index])
        self._pieces = pieces
        self._index = index
        self._parent = parent
        self._arguments = (node.args, dict(node.kwargs))
        self._name = operator_of(node).overloadpacket._qualified_op_name.removeprefix("aten::")

    def apply(self, emitter: Emitter, parent: Node, resolve: Callable[[Node], Node]) -> Node:
        span = self.span(parent.meta["val"])
        if span is None:
            return self._call_again(emitter, self._index, parent, resolve)
        if self._name == "unbind":
            args: tuple[Any, ...] = (parent, span.dim, span.start)
            return emitter.call(aten.select.int, args, val=self.val, origin=self.node)
        args = (parent, span.dim, span.start, span.stop)
        return emitter.call(aten.slice.Tensor, args, val=self.val, origin=self.node)

    def write_back(self, emitter: Emitter, base: ViewBase, value: Node) -> Node:
        dim = self._dim(base.val)
        if dim is None:
            return _reshaped(emitter, self.node, base, value)
        before = base.before()
        if self._name == "unbind":
            args: tuple[Any, ...] = (before, value, dim, self._index)
            return emitter.call(aten.select_scatter.default, args, val=base.val, origin=self.node)
        span = self.span(base.val)
        bounds = (span.start, span.stop) if span else self._symbolic_bounds(emitter, before, dim)
        args = (before, value, dim, *bounds)
        return emitter.call(aten.slice_scatter.default, args, val=base.val, origin=self.node)

    def span(self, parent: torch.Tensor) -> Span | None:
        dim = self._dim(parent)
        if dim is None:
            return None
        if self._name == "unbind":
            return Span(dim, self._index, self._index + 1, 1)
        sizes = [piece.shape[dim] for piece in self._pieces[: self._index + 1]]
        if not all(isinstance(size, int) for size in sizes):
            return None
        stop = sum(sizes)
        return Span(dim, stop - sizes[-1], stop, 1)

    def repeats_elements(self) -> bool:
        return _is_expanded(self.val)

    def _dim(self, parent: torch.Tensor) -> int | None:
        """The dim that is split; None for operators that return several tensors without splitting one."""
        if self._name in ("hsplit", "vsplit", "dsplit"):
            return {"hsplit": min(1, parent.dim() - 1), "vsplit": 0, "dsplit": 2}[self._name]
        dim = arguments_with_defaults(self.node).get("dim")
        return None if dim is None else int(dim) % parent.dim()

    def _call_again(self, emitter: Emitter, index: int, parent: Node, resolve: Callable[[Node], Node]) -> Node:
        def replace(argument: Node) -> Node:
            return parent if argument is self._parent else resolve(argument)

        args, kwargs = map_arg(self._arguments, replace)
        node = self.node
        pieces = emitter.call(function_of(node), args, kwargs=kwargs, val=self._pieces, origin=node)
        return emitter.call(operator.getitem, (pieces, index), val=self._pieces[index], origin=self.node)

    def _symbolic_bounds(self, emitter: Emitter, parent: Node, dim: int) -> tuple[int | Node, int | Node]:
        start: int | Node = 0
        for index, piece in enumerate(self._pieces):
            if index == len(self._pieces) - 1:
                return start, _UNBOUNDED
            witness = partial(self._call_again, emitter, index, parent, _itself)
            stop = _sum(emitter, start, emitter.size(piece.shape[dim], dim, witness), self.node)
            if index == self._index:
                break
            start = stop
        return start, stop


def _itself(node: Node) -> Node:
    return node


def _sum(emitter: Emitter, left: int | Node, right: int | Node, origin: Node) -> int | Node:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if left == 0:
        return right
    known = [term.meta["val"] if isinstance(term, Node) else term for term in (left, right)]
    return emitter.call(operator.add, (left, right), val=known[0] + known[1], origin=origin)


def _span(dim: int, size: Any, start: Any, stop: Any, step: int) -> Span | None:
    """The span of slice arguments, which may be negative or absent; None if they are symbolic."""
    start = 0 if start is None else start
    stop = _UNBOUNDED if stop is None else stop
    if not isinstance(start, int) or not isinstance(stop, int):
        return None
    if isinstance(size, int):
        start, stop = (min(max(bound + size if bound < 0 else bound, 0), size) for bound in (start, stop))
    return None if start < 0 or stop < 0 else Span(dim, start, stop, step)


def _is_expanded(val: torch.Tensor) -> bool:
    return any(stride == 0 and size != 1 for size, stride in zip(val.shape, val.stride(), strict=True))


def _is_injective(val: torch.Tensor) -> bool:
    """Whether all elements of a strided tensor are known to be at different memory locations."""
    dims = [(stride, size) for size, stride in zip(val.shape, val.stride(), strict=True) if size != 1]
    if not all(isinstance(number, int) for dim in dims for number in dim):
        return False
    reach = 0
    for stride, size in sorted(dims):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def _contiguous(emitter: Emitter, view: Node, owner: Node) -> Node:
    """A contiguous copy of a storage's owner, whose elements ``as_strided`` addresses in order."""
    val = owner.meta["val"]
    if not val.is_contiguous() or val.storage_offset() != 0:
        refuse(view, "as_strided of a mutated tensor that is not contiguous has no functional form")
    kwargs = {"memory_format": torch.contiguous_format}
    return emitter.call(aten.clone.default, (owner,), kwargs=kwargs, val=val, origin=view)


@dataclass(frozen=True)
class _ViewWrite:
    """One write through a view returned by an operator.

    Attributes:
        emitter: Inserts nodes.
        view: The node that creates the view.
        base: The base of the view.
        value: The value written through the view.
    """

    emitter: Emitter
    view: Node
    base: ViewBase
    value: Node

    def emit(self, target: Callable[..., Any], *args: Any) -> Node:
        """Insert a call whose result has the shape and dtype of the base."""
        return self.emitter.call(target, args, val=self.base.val, origin=self.view)

    def part_of(self, target: Callable[..., Any], *args: Any) -> Node:
        """Insert a call whose result is a part of a value, with shape and dtype computed on fake tensors."""
        fakes = [argument.meta["val"] if isinstance(argument, Node) else argument for argument in args]
        with fakes[0].fake_mode:
            val = target(*fakes)
        return self.emitter.call(target, args, val=val, origin=self.view)


def _reshaped(emitter: Emitter, view: Node, base: ViewBase, value: Node) -> Node:
    shape = emitter.shape(base.val, base.witness)
    return emitter.call(aten.reshape.default, (value, shape), val=base.val, origin=view)


def _identity(write: _ViewWrite) -> Node:
    return write.value


def _reshape(write: _ViewWrite) -> Node:
    if write.view.target is aten.view.dtype:
        return write.emit(aten.view.dtype, write.value, write.base.val.dtype)
    return _reshaped(write.emitter, write.view, write.base, write.value)


def _self_inverse(write: _ViewWrite) -> Node:
    """The inverse of an operator that is its own inverse."""
    return write.emit(function_of(write.view), write.value, *[*arguments_with_defaults(write.view).values()][1:])


def _conjugate(write: _ViewWrite) -> Node:
    return write.emit(aten.conj_physical.default, write.value)


def _adjoint(write: _ViewWrite) -> Node:
    # Resolved at once, since torch has no real view of a lazily conjugated tensor.
    return write.emit(aten.resolve_conj.default, _self_inverse(write))


def _permute(write: _ViewWrite) -> Node:
    rank = write.base.val.dim()
    dims = [dim % rank for dim in arguments_with_defaults(write.view)["dims"]]
    return write.emit(aten.permute.default, write.value, [dims.index(dim) for dim in range(rank)])


def _movedim(write: _ViewWrite) -> Node:
    arguments = arguments_with_defaults(write.view)
    return write.emit(function_of(write.view), write.value, arguments["destination"], arguments["source"])


def _unsqueeze(write: _ViewWrite) -> Node:
    return write.emit(aten.squeeze.dim, write.value, arguments_with_defaults(write.view)["dim"])


def _select(write: _ViewWrite) -> Node:
    arguments = arguments_with_defaults(write.view)
    return write.emit(
        aten.select_scatter.default, write.base.before(), write.value, arguments["dim"], arguments["index"]
    )


def _slice(write: _ViewWrite) -> Node:
    arguments = arguments_with_defaults(write.view)
    bounds = (arguments["dim"], arguments["start"], arguments["end"], arguments["step"])
    return write.emit(aten.slice_scatter.default, write.base.before(), write.value, *bounds)


def _narrow(write: _ViewWrite) -> Node:
    arguments = arguments_with_defaults(write.view)
    dim, start, length = arguments["dim"], arguments["start"], arguments["length"]
    if write.view.target is aten.narrow.Tensor:
        return _narrow_from_tensor(write, dim, start, length)
    if isinstance(start, int) and start < 0:
        start = _sum(write.emitter, write.emitter.shape(write.base.val, write.base.witness)[dim], start, write.view)
    stop = _sum(write.emitter, start, length, write.view)
    return write.emit(aten.slice_scatter.default, write.base.before(), write.value, dim, start, stop)


def _narrow_from_tensor(write: _ViewWrite, dim: int, start: Node, length: int | Node) -> Node:
    """The inverse of ``narrow`` whose start is a tensor: a write at positions, which fails beyond the end."""
    dtype, device = torch.int64, write.base.val.device
    size = length.meta["val"] if isinstance(length, Node) else length
    with fake_mode_of((write.base.val,)):
        val = torch.arange(size, dtype=dtype, device=device)
    kwargs = {"dtype": dtype, "device": device}
    offsets = write.emitter.call(aten.arange.default, (length,), kwargs=kwargs, val=val, origin=write.view)
    positions = write.emitter.call(aten.add.Tensor, (offsets, start), val=val, origin=write.view)
    return write.emit(aten.index_copy.default, write.base.before(), dim, positions, write.value)


def _diagonal(write: _ViewWrite) -> Node:
    arguments = arguments_with_defaults(write.view)
    where = (arguments["offset"], arguments["dim1"], arguments["dim2"])
    return write.emit(aten.diagonal_scatter.default, write.base.before(), write.value, *where)


def _as_strided(write: _ViewWrite) -> Node:
    arguments = arguments_with_defaults(write.view)
    before = _contiguous(write.emitter, write.view, write.base.before())
    where = (arguments["size"], arguments["stride"], arguments["storage_offset"])
    return write.emit(aten.as_strided_scatter.default, before, write.value, *where)


def _unfold(write: _ViewWrite) -> Node:
    """The inverse for windows that do not overlap: the k-th elements of all windows are a slice of the base."""
    arguments = arguments_with_defaults(write.view)
    dim, step = arguments["dimension"] % write.base.val.dim(), arguments["step"]
    windows = write.value.meta["val"].shape[dim]
    count = write.emitter.size(windows, dim, lambda: write.value)
    stop: int | Node
    if isinstance(count, int):
        stop = count * step
    else:
        stop = write.emitter.call(operator.mul, (count, step), val=windows * step, origin=write.view)
    result = write.base.before()
    for offset in range(arguments["size"]):
        element = write.part_of(aten.select.int, write.value, -1, offset)
        result = write.emit(aten.slice_scatter.default, result, element, dim, offset, stop, step)
    return result


def _real(write: _ViewWrite) -> Node:
    return write.emit(aten.complex.default, write.value, write.part_of(aten.imag.default, write.base.before()))


def _imag(write: _ViewWrite) -> Node:
    return write.emit(aten.complex.default, write.part_of(aten.real.default, write.base.before()), write.value)


def _view_as_real(write: _ViewWrite) -> Node:
    return write.emit(aten.view_as_complex.default, write.value)


def _view_as_complex(write: _ViewWrite) -> Node:
    return write.emit(aten.view_as_real.default, write.value)


_RESHAPES = (
    "view view_as reshape reshape_as _unsafe_view _reshape_alias flatten unflatten ravel squeeze expand expand_as "
    "broadcast_to atleast_1d atleast_2d atleast_3d"
)
# Operators that return their input if they have nothing to change.
_IDENTITIES = (
    "alias detach lift_fresh lift contiguous to type_as positive resolve_conj resolve_neg dropout feature_dropout "
    "alpha_dropout feature_alpha_dropout"
)
_INVOLUTIONS = "transpose swapaxes swapdims t numpy_T mT _neg_view"
_INVERSES: Mapping[str, Callable[[_ViewWrite], Node]] = {
    **{f"aten::{name}": _identity for name in _IDENTITIES.split()},
    **{f"aten::{name}": _reshape for name in _RESHAPES.split()},
    **{f"aten::{name}": _self_inverse for name in _INVOLUTIONS.split()},
    **dict.fromkeys(("aten::conj", "aten::_conj"), _conjugate),
    **dict.fromkeys(("aten::mH", "aten::matrix_H", "aten::adjoint"), _adjoint),
    "aten::permute": _permute,
    "aten::movedim": _movedim,
    "aten::moveaxis": _movedim,
    "aten::unsqueeze": _unsqueeze,
    "aten::select": _select,
    "aten::slice": _slice,
    "aten::narrow": _narrow,
    "aten::diagonal": _diagonal,
    "aten::linalg_diagonal": _diagonal,
    "aten::as_strided": _as_strided,
    "aten::unfold": _unfold,
    "aten::real": _real,
    "aten::imag": _imag,
    "aten::view_as_real": _view_as_real,
    "aten::view_as_complex": _view_as_complex,
}
