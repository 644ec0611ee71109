"""Sparse tensors in their dense form: ONNX has no operators for sparse tensors.

Sparse tensors that depend on weights and constants alone are computed, and stored as dense ones. What depends on inputs
is computed by the operators for dense tensors, where these have the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from fxonnx_translations._torch_compat import OpOverload, pytree

from .._provenance import copy_provenance
from .._warnings import warn_user
from .functionalize.emit import refuse
from .graph_utils import (
    erase_unused,
    fake_mode_of,
    find_attribute,
    is_impure,
    module_attribute,
    store_attribute,
    subgraphs_of,
)
from .tracing import TraceError, splice_trace, trace_call

__all__ = ["is_sparse", "make_dense"]

aten = torch.ops.aten

_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_HINT = "compute the dense tensor with to_dense() before it, or the sparse one from weights and constants"


def is_sparse(value: Any) -> bool:
    """Whether a value is a tensor of a sparse layout."""
    return isinstance(value, torch.Tensor) and value.layout in _LAYOUTS


def make_dense(
    owner: GraphModule, value_of: Callable[[Node], torch.Tensor | None], name_of: Callable[[Node], str] = str
) -> None:
    """Replace sparse tensors in a graph, and in its subgraphs, by dense ones; warn about those that are stored.

    A graph without sparse tensors is not changed.

    Args:
        owner: The module of a copied graph as captured by torch.export, whose subgraphs are copies too.
        value_of: Returns the tensor of the placeholder of a parameter, buffer or constant.
        name_of: Returns its name in the model.

    Raises:
        PrepareError: If an operator needs a sparse tensor that depends on an input.
    """
    if any(is_sparse(node.meta.get("val")) for node in owner.graph.nodes):
        densifier = _Densifier(owner, value_of, name_of)
        densifier.run()
        if densifier.stored:
            warn_user(
                "ONNX has no sparse tensors, and the file holds dense ones:\n  "
                + "\n  ".join(densifier.stored)
                + "\nproducts with infinite or NaN elements differ: in a dense product, 0 times infinity is NaN"
            )
        for _, body in subgraphs_of(owner):
            make_dense(body, lambda _: None)


class _Densifier:
    """The sparse tensors of one graph.

    Attributes:
        stored: A line for each sparse tensor that is stored as a dense one.
    """

    def __init__(
        self, owner: GraphModule, value_of: Callable[[Node], torch.Tensor | None], name_of: Callable[[Node], str]
    ) -> None:
        self.stored: list[str] = []
        self._name_of = name_of
        self._owner = owner
        self._graph: Graph = owner.graph
        self._value_of = value_of
        self._values: dict[Node, Any] = {}
        # The nodes that are sparse or computed from a sparse tensor, and those of them that depend on no input.
        self._affected: set[Node] = set()
        self._constant: set[Node] = set()
        self._made: dict[Node, Any] = {}

    def run(self) -> None:
        nodes = list(self._graph.nodes)
        written = _written(nodes)
        for node in nodes:
            if node not in written and self._is_constant(node):
                self._constant.add(node)
            if _has_sparse(node) or not self._affected.isdisjoint(node.all_input_nodes):
                self._affected.add(node)
        constants = self._affected & self._constant
        sparse = {node for node in nodes if _has_sparse(node)}
        # Before the first of them is replaced.
        calls = {node for node in nodes if node in sparse or not sparse.isdisjoint(node.all_input_nodes)}
        for node in nodes:
            if node in self._affected and node not in constants:
                self._rewrite(node, node in calls)
        erase_unused(node for node in reversed(nodes) if node in constants and node.op != "placeholder")

    def _is_constant(self, node: Node) -> bool:
        if node.op == "placeholder":
            return self._value_of(node) is not None
        if node.op == "get_attr":
            return isinstance(find_attribute(self._owner, str(node.target)), torch.Tensor)
        return (
            node.op == "call_function"
            and not is_impure(node)
            and torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())
            and all(source in self._constant for source in node.all_input_nodes)
        )

    def _rewrite(self, node: Node, is_sparse_call: bool) -> None:
        if node.op == "output" and is_sparse_call:
            refuse(node, "an output of the model is a sparse tensor", hint="return x.to_dense()")
        if node.op == "placeholder":
            _make_value_dense(node)
            return
        with self._graph.inserting_before(node):
            node.args = torch.fx.map_arg(node.args, self._dense)
            node.kwargs = torch.fx.map_arg(node.kwargs, self._dense)
        if not (is_sparse_call and isinstance(node.target, OpOverload)):
            return
        function = _FUNCTIONS.get(node.target)
        if function is None and (_writes(node) or node.target._schema.name not in _SAME):
            refuse(node, "ONNX has no such operator for a sparse tensor that depends on an input", hint=_HINT)
        if function is None and isinstance(node.meta.get("val"), torch.Tensor):
            # The operator for dense tensors is the same one.
            _make_value_dense(node)
            return
        try:
            traced = trace_call(node, function or node.target, check=False)
        except TraceError as error:
            refuse(node, f"it cannot be computed with dense tensors: {error}", hint=_HINT)
        _make_value_dense(node)
        splice_trace(self._owner, node, traced)

    def _dense(self, source: Node) -> Any:
        """The constant of a node in dense form, or the node itself if it is not affected or not constant."""
        if source not in self._affected or source not in self._constant:
            return source
        if source not in self._made:
            value = self._evaluated(source)
            if not isinstance(value, torch.Tensor):
                return value
            if is_sparse(value):
                self.stored.append(_described(self._name_of(source), value))
                value = value.to_dense()
            made = self._graph.get_attr(store_attribute(self._owner, f"{source.name}_dense", value.contiguous()))
            made.meta["val"] = _fake(source, value)
            copy_provenance(made, source)
            self._made[source] = made
        return self._made[source]

    def _evaluated(self, node: Node) -> Any:
        """The value of a constant node. Its inputs are evaluated before it, as in the graph."""
        values = self._values
        pending = [node]
        while pending:
            current = pending[-1]
            missing = [source for source in current.all_input_nodes if source not in values]
            if current in values or not missing:
                pending.pop()
                if current not in values:
                    values[current] = self._computed(current)
            pending += missing
        return values[node]

    def _computed(self, node: Node) -> Any:
        if node.op == "placeholder":
            value = self._value_of(node)
            return value if value is None else value.detach()
        if node.op == "get_attr":
            return module_attribute(self._owner, node).detach()
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
        target: Any = node.target
        with torch.no_grad():
            return target(*args, **kwargs)


def _written(nodes: Iterable[Node]) -> set[Node]:
    """The nodes that operators may write to in place, and those that they are computed from."""
    found: set[Node] = set()
    pending = [source for node in nodes if _writes(node) for source in node.all_input_nodes]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += node.all_input_nodes
    return found


def _writes(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _described(name: str, value: torch.Tensor) -> str:
    shape = " x ".join(map(str, value.shape))
    kept = value._nnz() if value.layout is torch.sparse_coo else value.values().numel()
    size = value.numel() * value.element_size()
    return f"{name!r}, of size {shape} with {kept} values, in {size} bytes"


def _fake(node: Node, value: torch.Tensor) -> torch.Tensor:
    """A fake tensor with the shape and dtype of a dense tensor."""
    mode = fake_mode_of([node.meta.get("val")])
    if mode is None:
        return value
    with mode:
        return torch.empty(value.shape, dtype=value.dtype)


def _has_sparse(node: Node) -> bool:
    return any(map(is_sparse, pytree.tree_leaves(node.meta.get("val"))))


def _make_value_dense(node: Node) -> None:
    val = node.meta["val"]
    if is_sparse(val):
        node.meta["val"] = _fake(node, val)


def _to_dense(sparse: torch.Tensor, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return sparse.clone() if dtype is None else sparse.to(dtype)


def _from_indices(indices: torch.Tensor, values: torch.Tensor, size: Any, dtype: Any = None, **_: Any) -> torch.Tensor:
    empty = torch.zeros(list(size), dtype=dtype or values.dtype)
    # Values of equal indices are added.
    return empty.index_put(tuple(indices.unbind(0)), values.to(empty.dtype), accumulate=True)


_FUNCTIONS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten._sparse_mm.default: aten.mm.default,
        aten._sparse_addmm.default: aten.addmm.default,
        aten._sparse_sum.default: aten.sum.default,
        aten._sparse_sum.dim: aten.sum.dim_IntList,
        aten._to_dense.default: _to_dense,
        aten.to_dense.default: _to_dense,
        aten.coalesce.default: _to_dense,
        aten.to_sparse.default: lambda dense, **_: dense.clone(),
        aten.sparse_coo_tensor.indices_size: _from_indices,
    }
)
"""Operators of sparse tensors to functions of dense ones."""

_SAME = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "matmul", "mv", "addmm", "addmv", "bmm", "linear", "add", "sub", "mul", "div", "sum", "cat", "stack"),
        *("t", "transpose", "permute", "select", "unsqueeze", "squeeze", "index_select", "slice", "narrow", "unbind"),
        *("clone", "detach", "alias", "contiguous", "to", "_to_copy", "neg", "abs", "sign", "relu", "sqrt", "square"),
        *("sin", "tan", "tanh", "asin", "atan", "sinh", "asinh", "atanh", "erf", "expm1", "log1p", "ceil", "floor"),
        *("round", "trunc"),
    )
)
"""Operators whose result for sparse tensors, where torch has them, is the one for dense tensors."""
