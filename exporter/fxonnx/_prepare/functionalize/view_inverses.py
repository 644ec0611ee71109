"""Views of tensors, as functions of values: how to look through one, and how to write through it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import Node, map_arg

from .emit import Emitter, bind, refuse

__all__ = ["OperatorView", "PieceView", "Source", "Span", "View", "disjoint"]

aten = torch.ops.aten

# What torch writes for "up to the end".
_UNBOUNDED = 2**63 - 1


@dataclass(frozen=True)
class Source:
    """What a view looks at, while something is written through the view.

    Attributes:
        val: Fake tensor of its shape and dtype.
        before: Gives the node that holds its content before the write.
        witness: Gives a node of its shape, whatever the content.
    """

    val: torch.Tensor
    before: Callable[[], Node]
    witness: Callable[[], Node]


@dataclass(frozen=True)
class Span:
    """The part ``start:stop:step`` of one dimension; all numbers are known and not negative."""

    dim: int
    start: int
    stop: int
    step: int


def disjoint(left: Span | None, right: Span | None) -> bool:
    """Whether two parts of one tensor are known to have no element in common."""
    if left is None or right is None or left.dim != right.dim:
        return False
    if left.stop <= right.start or right.stop <= left.start:
        return True
    return left.step == right.step and (left.start - right.start) % left.step != 0


class View:
    """Looks at a tensor as it is.

    Args:
        node: The node of the graph that makes the view.
        val: Fake tensor of the view.
    """

    def __init__(self, node: Node, val: torch.Tensor) -> None:
        self.node = node
        self.val = val

    def apply(self, emitter: Emitter, parent: Node, resolve: Callable[[Node], Node]) -> Node:
        """A node that holds the view of ``parent``.

        Args:
            emitter: Adds nodes.
            parent: Content of what is looked at.
            resolve: Gives the current content of the view's other arguments.
        """
        del emitter, resolve
        return parent

    def write_back(self, emitter: Emitter, source: Source, value: Node) -> Node:
        """A node that holds what the view looks at, after ``value`` was written through the view."""
        del emitter, source
        return value

    def span(self, parent: torch.Tensor) -> Span | None:
        """The part of the parent that is looked at, where that is a known part of one dimension."""
        del parent
        return None

    def repeats_elements(self) -> bool:
        """Whether one element of the parent may be seen more than once, so that nothing can be written."""
        return False


class OperatorView(View):
    """The view that an operator of the graph makes.

    Args:
        node: The node that calls the operator.
        val: Fake tensor of the view.
        parent: The argument that is looked at.
    """

    def __init__(self, node: Node, val: torch.Tensor, parent: Node) -> None:
        super().__init__(node, val)
        self._parent = parent
        self._arguments = (node.args, dict(node.kwargs))
        self._is_placed = False
        self._name = node.target.overloadpacket._qualified_op_name  # type: ignore[union-attr]

    def place(self) -> None:
        """Lets the node stay where it is as the view's first value."""
        self._is_placed = True

    def apply(self, emitter: Emitter, parent: Node, resolve: Callable[[Node], Node]) -> Node:
        if self._name == "aten::as_strided":
            parent = _contiguous(emitter, self.node, parent)

        def replace(argument: Node) -> Node:
            return parent if argument is self._parent else resolve(argument)

        args, kwargs = map_arg(self._arguments, replace)
        if self._is_placed:
            return emitter.call(self.node.target, args, kwargs=kwargs, val=self.val, origin=self.node)  # type: ignore[arg-type]
        self._is_placed = True
        self.node.args, self.node.kwargs = args, kwargs
        emitter.anchor.prepend(self.node)
        return self.node

    def write_back(self, emitter: Emitter, source: Source, value: Node) -> Node:
        inverse = _INVERSES.get(self._name)
        if inverse is None:
            refuse(self.node, "this view can not be written through in functional form")
        return inverse(_Inversion(emitter, self.node, source, value))

    def span(self, parent: torch.Tensor) -> Span | None:
        if self._name not in ("aten::select", "aten::slice", "aten::narrow"):
            return None
        arguments = bind(self.node)
        size = parent.shape[arguments["dim"]]
        start = arguments["index"] if self._name == "aten::select" else arguments["start"]
        if self._name == "aten::slice":
            return _span(arguments["dim"] % parent.dim(), size, start, arguments["end"], arguments["step"])
        length = 1 if self._name == "aten::select" else arguments["length"]
        if not isinstance(start, int) or not isinstance(length, int):
            return None
        # The last of something: its end is not 0, the beginning.
        stop = None if start < 0 and start + length == 0 else start + length
        return _span(arguments["dim"] % parent.dim(), size, start, stop, 1)

    def repeats_elements(self) -> bool:
        if self._name == "aten::unfold":
            arguments = bind(self.node)
            return bool(arguments["step"] < arguments["size"])
        if self._name == "aten::as_strided":
            return not _is_injective(self.val)
        if self._name in ("aten::expand", "aten::expand_as", "aten::broadcast_to"):
            return _is_stretched(self.val)
        return False


class PieceView(View):
    """One of the tensors that an operator such as ``split`` returns.

    Args:
        node: The node that calls the operator.
        pieces: Fake tensors of all pieces.
        index: Which piece.
        parent: The argument of the operator that the piece looks at.
    """

    def __init__(self, node: Node, pieces: Sequence[torch.Tensor], index: int, parent: Node) -> None:
        super().__init__(node, pieces[index])
        self._pieces = pieces
        self._index = index
        self._parent = parent
        self._arguments = (node.args, dict(node.kwargs))
        self._name = node.target.overloadpacket._qualified_op_name.removeprefix("aten::")  # type: ignore[union-attr]

    def apply(self, emitter: Emitter, parent: Node, resolve: Callable[[Node], Node]) -> Node:
        span = self.span(parent.meta["val"])
        if span is None:
            return self._piece(emitter, self._index, parent, resolve)
        if self._name == "unbind":
            args: tuple[Any, ...] = (parent, span.dim, span.start)
            return emitter.call(aten.select.int, args, val=self.val, origin=self.node)
        args = (parent, span.dim, span.start, span.stop)
        return emitter.call(aten.slice.Tensor, args, val=self.val, origin=self.node)

    def write_back(self, emitter: Emitter, source: Source, value: Node) -> Node:
        dim = self._dim(source.val)
        if dim is None:
            return _reshaped(emitter, self.node, source, value)
        before = source.before()
        if self._name == "unbind":
            args: tuple[Any, ...] = (before, value, dim, self._index)
            return emitter.call(aten.select_scatter.default, args, val=source.val, origin=self.node)
        span = self.span(source.val)
        bounds = (span.start, span.stop) if span else self._bounds(emitter, before, dim)
        args = (before, value, dim, *bounds)
        return emitter.call(aten.slice_scatter.default, args, val=source.val, origin=self.node)

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
        return _is_stretched(self.val)

    def _dim(self, parent: torch.Tensor) -> int | None:
        """The dimension that is cut; None for operators that return several tensors without cutting any."""
        if self._name in ("hsplit", "vsplit", "dsplit"):
            return {"hsplit": min(1, parent.dim() - 1), "vsplit": 0, "dsplit": 2}[self._name]
        dim = bind(self.node).get("dim")
        return None if dim is None else int(dim) % parent.dim()

    def _piece(self, emitter: Emitter, index: int, parent: Node, resolve: Callable[[Node], Node]) -> Node:
        def replace(argument: Node) -> Node:
            return parent if argument is self._parent else resolve(argument)

        args, kwargs = map_arg(self._arguments, replace)
        node = self.node
        pieces = emitter.call(node.target, args, kwargs=kwargs, val=self._pieces, origin=node)  # type: ignore[arg-type]
        return emitter.call(operator.getitem, (pieces, index), val=self._pieces[index], origin=self.node)

    def _bounds(self, emitter: Emitter, parent: Node, dim: int) -> tuple[int | Node, int | Node]:
        start: int | Node = 0
        for index, piece in enumerate(self._pieces):
            if index == len(self._pieces) - 1:
                return start, _UNBOUNDED
            witness = partial(self._piece, emitter, index, parent, _itself)
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
    """A span from slice arguments, which may be negative, symbolic or absent."""
    start = 0 if start is None else start
    stop = _UNBOUNDED if stop is None else stop
    if not isinstance(start, int) or not isinstance(stop, int):
        return None
    if isinstance(size, int):
        start, stop = (min(max(bound + size if bound < 0 else bound, 0), size) for bound in (start, stop))
    return None if start < 0 or stop < 0 else Span(dim, start, stop, step)


def _is_stretched(val: torch.Tensor) -> bool:
    return any(stride == 0 and size != 1 for size, stride in zip(val.shape, val.stride(), strict=True))


def _is_injective(val: torch.Tensor) -> bool:
    """Whether all elements of a strided tensor are known to be at different places."""
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
    """The owner of a memory as ``as_strided`` has to find it: element after element, in order."""
    val = owner.meta["val"]
    if not val.is_contiguous() or val.storage_offset() != 0:
        refuse(view, "as_strided of a written tensor whose elements are not in order has no functional form")
    kwargs = {"memory_format": torch.contiguous_format}
    return emitter.call(aten.clone.default, (owner,), kwargs=kwargs, val=val, origin=view)


@dataclass(frozen=True)
class _Inversion:
    """One write through a view made by an operator.

    Attributes:
        emitter: Adds nodes.
        view: The node that makes the view.
        source: What it looks at.
        value: What is written through it.
    """

    emitter: Emitter
    view: Node
    source: Source
    value: Node

    def emit(self, target: Callable[..., Any], *args: Any) -> Node:
        """Adds a call that results in what the view looks at."""
        return self.emitter.call(target, args, val=self.source.val, origin=self.view)

    def part(self, target: Callable[..., Any], *args: Any) -> Node:
        """Adds a call that results in a part of a value; what it looks like is found by running it on fake tensors."""
        fakes = [argument.meta["val"] if isinstance(argument, Node) else argument for argument in args]
        with fakes[0].fake_mode:
            val = target(*fakes)
        return self.emitter.call(target, args, val=val, origin=self.view)


def _reshaped(emitter: Emitter, view: Node, source: Source, value: Node) -> Node:
    shape = emitter.shape(source.val, source.witness)
    return emitter.call(aten.reshape.default, (value, shape), val=source.val, origin=view)


def _identity(at: _Inversion) -> Node:
    return at.value


def _reshape(at: _Inversion) -> Node:
    if at.view.target is aten.view.dtype:
        return at.emit(aten.view.dtype, at.value, at.source.val.dtype)
    return _reshaped(at.emitter, at.view, at.source, at.value)


def _again(at: _Inversion) -> Node:
    """For operators that undo themselves."""
    return at.emit(at.view.target, at.value, *[*bind(at.view).values()][1:])  # type: ignore[arg-type]


def _conjugate(at: _Inversion) -> Node:
    return at.emit(aten.conj_physical.default, at.value)


def _adjoint(at: _Inversion) -> Node:
    # The conjugate is taken at once: torch does not look at a lazily conjugated tensor as real numbers.
    return at.emit(aten.resolve_conj.default, _again(at))


def _permute(at: _Inversion) -> Node:
    rank = at.source.val.dim()
    dims = [dim % rank for dim in bind(at.view)["dims"]]
    return at.emit(aten.permute.default, at.value, [dims.index(dim) for dim in range(rank)])


def _movedim(at: _Inversion) -> Node:
    arguments = bind(at.view)
    return at.emit(at.view.target, at.value, arguments["destination"], arguments["source"])  # type: ignore[arg-type]


def _unsqueeze(at: _Inversion) -> Node:
    return at.emit(aten.squeeze.dim, at.value, bind(at.view)["dim"])


def _select(at: _Inversion) -> Node:
    arguments = bind(at.view)
    return at.emit(aten.select_scatter.default, at.source.before(), at.value, arguments["dim"], arguments["index"])


def _slice(at: _Inversion) -> Node:
    arguments = bind(at.view)
    bounds = (arguments["dim"], arguments["start"], arguments["end"], arguments["step"])
    return at.emit(aten.slice_scatter.default, at.source.before(), at.value, *bounds)


def _narrow(at: _Inversion) -> Node:
    arguments = bind(at.view)
    dim, start, length = arguments["dim"], arguments["start"], arguments["length"]
    if at.view.target is aten.narrow.Tensor:
        refuse(at.view, "a write through narrow with a tensor as start has no functional form")
    if isinstance(start, int) and start < 0:
        start = _sum(at.emitter, at.emitter.shape(at.source.val, at.source.witness)[dim], start, at.view)
    stop = _sum(at.emitter, start, length, at.view)
    return at.emit(aten.slice_scatter.default, at.source.before(), at.value, dim, start, stop)


def _diagonal(at: _Inversion) -> Node:
    arguments = bind(at.view)
    where = (arguments["offset"], arguments["dim1"], arguments["dim2"])
    return at.emit(aten.diagonal_scatter.default, at.source.before(), at.value, *where)


def _linalg_diagonal(at: _Inversion) -> Node:
    arguments = bind(at.view)
    where = (arguments["offset"], arguments["dim1"], arguments["dim2"])
    return at.emit(aten.diagonal_scatter.default, at.source.before(), at.value, *where)


def _as_strided(at: _Inversion) -> Node:
    arguments = bind(at.view)
    before = _contiguous(at.emitter, at.view, at.source.before())
    where = (arguments["size"], arguments["stride"], arguments["storage_offset"])
    return at.emit(aten.as_strided_scatter.default, before, at.value, *where)


def _unfold(at: _Inversion) -> Node:
    """Windows that do not overlap: the k-th elements of all windows are a slice of the source."""
    arguments = bind(at.view)
    dim, step = arguments["dimension"] % at.source.val.dim(), arguments["step"]
    windows = at.value.meta["val"].shape[dim]
    count = at.emitter.size(windows, dim, lambda: at.value)
    stop: int | Node
    if isinstance(count, int):
        stop = count * step
    else:
        stop = at.emitter.call(operator.mul, (count, step), val=windows * step, origin=at.view)
    result = at.source.before()
    for offset in range(arguments["size"]):
        element = at.part(aten.select.int, at.value, -1, offset)
        result = at.emit(aten.slice_scatter.default, result, element, dim, offset, stop, step)
    return result


def _real(at: _Inversion) -> Node:
    return at.emit(aten.complex.default, at.value, at.part(aten.imag.default, at.source.before()))


def _imag(at: _Inversion) -> Node:
    return at.emit(aten.complex.default, at.part(aten.real.default, at.source.before()), at.value)


def _view_as_real(at: _Inversion) -> Node:
    return at.emit(aten.view_as_complex.default, at.value)


def _view_as_complex(at: _Inversion) -> Node:
    return at.emit(aten.view_as_real.default, at.value)


_RESHAPES = (
    "view view_as reshape reshape_as _unsafe_view _reshape_alias flatten unflatten ravel squeeze expand expand_as "
    "broadcast_to atleast_1d atleast_2d atleast_3d"
)
# They return what they are given when there is nothing to do.
_IDENTITIES = (
    "alias detach lift_fresh lift contiguous to type_as positive resolve_conj resolve_neg dropout feature_dropout "
    "alpha_dropout feature_alpha_dropout"
)
_INVOLUTIONS = "transpose swapaxes swapdims t numpy_T mT _neg_view"
_INVERSES: Mapping[str, Callable[[_Inversion], Node]] = {
    **{f"aten::{name}": _identity for name in _IDENTITIES.split()},
    **{f"aten::{name}": _reshape for name in _RESHAPES.split()},
    **{f"aten::{name}": _again for name in _INVOLUTIONS.split()},
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
    "aten::linalg_diagonal": _linalg_diagonal,
    "aten::as_strided": _as_strided,
    "aten::unfold": _unfold,
    "aten::real": _real,
    "aten::imag": _imag,
    "aten::view_as_real": _view_as_real,
    "aten::view_as_complex": _view_as_complex,
}
