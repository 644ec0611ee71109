"""Pack sequences in their own order: torch sorts them by length, which the ONNX operators do not require."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..._provenance import VALUE_KEY
from .formula import Formula, Matches
from .matching import as_call, dims_of
from .terms import Tensor, Term, Value, either, op

__all__ = ["pack_unsorted"]

aten = torch.ops.aten

_LAYERS = (aten.lstm.data, aten.gru.data, aten.rnn_tanh.data, aten.rnn_relu.data)
_ZEROS = (aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default)
_READS_SIZES = (*_ZEROS, aten.sym_size.int)
_CASTS = (aten.to.dtype, aten._to_copy.default)


def pack_unsorted(graph: torch.fx.Graph) -> Matches:
    """Remove the sorting of sequences that are packed, if all results are brought back into the original order."""
    found = Matches()
    for packing in graph.find_nodes(op="call_function", target=torch.ops.fxonnx.pack_padded_sequence.default):
        match = _PACKED.at(packing)
        if match is None:
            continue
        selected, sort, order = (match.node(name) for name in ("selected", "sort", "order"))
        inverses = {user for user in order.users if (found_at := _INVERSE.at(user)) and found_at.node("order") is order}
        sorting = _SortedPacking(packing, selected, sort, order, inverses)
        if sorting.covers_all_uses():
            sorting.apply()
            found.fused.append(packing)
    return found


def _packed(x: Tensor, lengths: Tensor, axis: Value, sorted_axis: Value, is_batch_first: Value) -> Term:
    sort = op(aten.sort.default)(lengths, sorted_axis, True).named("sort")
    order = op(operator.getitem)(sort, 1).named("order")
    selected = op.index_select(x, axis, order).named("selected")
    return op("fxonnx::pack_padded_sequence")(selected, op(operator.getitem)(sort, 0), is_batch_first)


def _inverse(order: Tensor, size: Value, start: Tensor) -> Term:
    # 0, 1, ... are scattered to the places of the order.
    steps = either(op(aten.arange.default)(size).loose(), op(aten.arange.start)(0, size).loose())
    return op(aten.scatter.src)(start, 0, order, steps)


_PACKED = Formula(_packed, lambda match: match.value("axis") == (0 if match.value("is_batch_first") else 1))
_INVERSE = Formula(_inverse)


@dataclass
class _SortedPacking:
    """A packing of sorted sequences and the nodes that depend on their order.

    Attributes:
        packing: The call of ``pack_padded_sequence``.
        selected: The sequences in the sorted order.
        sort: The sort of the lengths.
        order: The indices that sort.
        inverses: The inverse permutations of the order.
        restored: Selections that bring results back into the original order.
        states: Initial states in the sorted order.
        reordered: Results whose order changes: the packing, layers, and what is computed from them.
    """

    packing: torch.fx.Node
    selected: torch.fx.Node
    sort: torch.fx.Node
    order: torch.fx.Node
    inverses: set[torch.fx.Node]
    restored: list[torch.fx.Node] = field(default_factory=list)
    states: list[tuple[torch.fx.Node, torch.fx.Node]] = field(default_factory=list)
    reordered: set[torch.fx.Node] = field(default_factory=set)

    def covers_all_uses(self) -> bool:
        """Whether no result of the graph depends on the order; collects the nodes to be replaced."""
        pending: list[torch.fx.Node] = []
        for item in self.packing.users:
            if item.args[1] == 0:
                pending.append(item)
            elif not all(self._reads_batch_sizes(user, item) for user in item.users):
                return False
        packed = set(pending)
        while pending:
            node = pending.pop()
            for user in node.users:
                if user in packed or user.target in _READS_SIZES:
                    continue
                if user.target in _LAYERS and user.args[0] is node:
                    if not self._covers_layer(user):
                        return False
                    results = [item for item in user.users if item.args[1] == 0]
                elif user.target == torch.ops.fxonnx.pad_packed_sequence.default:
                    if not self._covers_padding(user):
                        return False
                    results = []
                elif _is_row_wise(user, packed):
                    results = [user]
                else:
                    return False
                packed.update(results)
                pending.extend(results)
        self.reordered |= packed
        return True

    def apply(self) -> None:
        """Pack, run and unpack in the original order."""
        self.packing.args = (self.selected.args[0], self.sort.args[0], self.packing.args[2])
        for layer, state in self.states:
            layer.replace_input_with(state, state.args[0])  # type: ignore[arg-type]
        for node in self.reordered:
            node.meta.pop(VALUE_KEY, None)
        for node in self.restored:
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]

    def _reads_batch_sizes(self, user: torch.fx.Node, sizes: torch.fx.Node) -> bool:
        if user.target in _LAYERS or user.target == torch.ops.fxonnx.pad_packed_sequence.default:
            return user.args[1] is sizes and user.args[0] is not sizes
        return not user.users or user.target == aten.sym_size.int

    def _covers_layer(self, layer: torch.fx.Node) -> bool:
        states: Any = layer.args[2]
        for state in states if isinstance(states, (list, tuple)) else [states]:
            selected = as_call(state, aten.index_select.default)
            if selected is not None and selected.args[1:] == (1, self.order):
                self.states.append((layer, selected))
            elif as_call(state, *_ZEROS) is None:
                return False
        return all(self._restores(item, 1) for item in layer.users if item.args[1] != 0)

    def _covers_padding(self, padding: torch.fx.Node) -> bool:
        axis = 0 if padding.args[2] else 1
        return all(self._restores(item, axis if item.args[1] == 0 else 0) for item in padding.users)

    def _restores(self, node: torch.fx.Node, axis: int) -> bool:
        """Whether all users of a result select the original order along an axis."""
        for user in node.users:
            if user.target == aten.index_select.default:
                (_, along, index) = user.args
            elif user.target == aten.index.Tensor and isinstance(user.args[1], (list, tuple)):
                along, index = 0, user.args[1][0] if len(user.args[1]) == 1 else None
            else:
                return False
            if user.args[0] is not node or along != axis or index not in self.inverses:
                return False
            self.restored.append(user)
        self.reordered.add(node)
        return True


def _is_row_wise(node: torch.fx.Node, packed: set[torch.fx.Node]) -> bool:
    """Whether a node computes each packed element from the same element of its packed inputs."""
    if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    if node.target == aten.embedding.default:
        return node.args[0] not in packed
    if node.target == aten.linear.default:
        return not packed.intersection(node.args[1:])
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()) and node.target not in _CASTS:
        return False
    rank = len(node.meta["val"].shape)
    ranks = [(source in packed, len(dims_of(source) or ())) for source in node.all_input_nodes]
    return all(size == rank if is_packed else size < rank for is_packed, size in ranks)
