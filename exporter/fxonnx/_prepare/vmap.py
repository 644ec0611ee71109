"""Inline regions captured inside ``torch.vmap``: calls on single samples between switches of functorch's state.

Such a region is not a valid graph of its own. It is traced again with fake tensors under functorch, whose batching
rules turn it into calls on whole batches.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fxonnx_translations._torch_compat import predispatch

from .._nodes import function_of
from .._provenance import copy_provenance, source_line
from ..errors import PrepareError
from .graph_utils import (
    fake_mode_of,
    find_attribute,
    module_attribute,
    nodes_between,
    replace_node,
    splice,
    store_attribute,
)
from .tracing import contiguous, no_new_guards

__all__ = ["inline_vmap", "is_vmap", "restore_switches", "vmap_regions"]

_ENTER = predispatch._vmap_increment_nesting
_LEAVE = predispatch._vmap_decrement_nesting
_AS_STRIDED = torch.ops.aten.as_strided.default
_BATCH_DIM_CALLS = frozenset(
    {predispatch._add_batch_dim, predispatch._remove_batch_dim, predispatch.lazy_load_decompositions}
)


def is_vmap(target: Any) -> bool:
    """Whether a call switches functorch's state or adds or removes a batch dim."""
    return target is _ENTER or target is _LEAVE or target in _BATCH_DIM_CALLS


def restore_switches(graph: torch.fx.Graph) -> None:
    """Insert the switches of functorch's state, which torch drops from subgraphs of control flow, in place."""
    added = graph.find_nodes(op="call_function", target=predispatch._add_batch_dim)
    if not added or graph.find_nodes(op="call_function", target=_ENTER):
        return
    # The level of each vmap that has begun, and its last call that removes a batch dim: one is added by a new vmap.
    begun: dict[Any, torch.fx.Node | None] = {}
    for node in list(graph.nodes):
        if node.target is predispatch._add_batch_dim:
            source, dim, level = node.args
            _leave_after(begun.get(level))
            if begun.get(level, node) is not None:
                with graph.inserting_before(node):
                    graph.call_function(_ENTER, (_size_of(source, dim), "error"))
                begun[level] = None
        elif node.target is predispatch._remove_batch_dim:
            begun[node.args[1]] = node
    for last in begun.values():
        _leave_after(last)


def _leave_after(last: torch.fx.Node | None) -> None:
    if last is not None:
        with last.graph.inserting_after(last):
            last.graph.call_function(_LEAVE)


def _size_of(source: torch.fx.Node, dim: int) -> Any:
    size = source.meta["val"].shape[dim]
    if not isinstance(size, torch.SymInt):
        return size
    node = source.graph.call_function(torch.ops.aten.sym_size.int, (source, dim))
    node.meta["val"] = size
    return node


def vmap_regions(graph: torch.fx.Graph) -> list[list[torch.fx.Node]]:
    """The outermost vmap regions of a graph, each with the switches of functorch's state that enclose it."""
    regions: list[list[torch.fx.Node]] = []
    region: list[torch.fx.Node] = []
    depth = 0
    for node in graph.nodes:
        depth += node.target is _ENTER
        if depth:
            region.append(node)
        if node.target is _LEAVE:
            depth -= 1
            if depth == 0:
                regions.append(region)
                region = []
    return regions


def inline_vmap(owner: torch.fx.GraphModule) -> None:
    """Replace every vmap region of a graph, in place, by calls on whole batches.

    Raises:
        PrepareError: If a batching rule is missing or would add a guard on symbolic sizes.
    """
    for region in vmap_regions(owner.graph):
        # Constants that the function creates are inputs of the region.
        for node in [node for node in region if node.op == "get_attr"]:
            region[0].prepend(node)
            region.remove(node)
        _replace_region(owner, region)
    for node in owner.graph.find_nodes(op="call_function", target=predispatch.lazy_load_decompositions):
        owner.graph.erase_node(node)


def _replace_region(owner: torch.fx.GraphModule, region: list[torch.fx.Node]) -> None:
    inside = set(region)
    inputs = list(dict.fromkeys(source for node in region for source in node.all_input_nodes if source not in inside))
    results = [node for node in region if any(user not in inside for user in node.users)]
    traced = _trace(owner, region, inputs, results)
    last = region[-1]
    before = last.prev

    def attribute(node: torch.fx.Node) -> str:
        return store_attribute(owner, f"_constant_of_{last.name}", module_attribute(traced, node))

    operands = [source for source in inputs if _is_traced(source)]
    replacements = splice(owner.graph, last, traced.graph, operands, attribute)
    made = nodes_between(before, last)
    for node in made:
        copy_provenance(node, results[0] if results else last)
    for node, replacement in zip(results, replacements, strict=True):
        replace_node(node, replacement, made)
    for node in reversed(region):
        owner.graph.erase_node(node)


def _is_traced(source: torch.fx.Node) -> bool:
    return isinstance(source.meta.get("val"), (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))


def _value(owner: torch.fx.GraphModule, source: torch.fx.Node) -> Any:
    """The value of an input: a fake tensor, a number, or the tree spec of an ``autograd.Function`` call."""
    return find_attribute(owner, str(source.target)) if "val" not in source.meta else source.meta["val"]


def _trace(
    owner: torch.fx.GraphModule,
    region: list[torch.fx.Node],
    inputs: list[torch.fx.Node],
    results: list[torch.fx.Node],
) -> torch.fx.GraphModule:
    operands = [source for source in inputs if _is_traced(source)]
    values = [source.meta["val"] for source in operands]

    def run(*given: Any) -> list[Any]:
        env = {source: _value(owner, source) for source in inputs} | dict(zip(operands, given, strict=True))
        depth = 0
        try:
            for node in region:
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), env.__getitem__)
                env[node] = function_of(node)(*args, **kwargs)
                depth += (node.target is _ENTER) - (node.target is _LEAVE)
        finally:
            # The vmap nesting level is global to the process.
            for _ in range(depth):
                _LEAVE()
        return [env[node] for node in results]

    fake_mode = fake_mode_of(values)

    def traced(values: list[Any]) -> torch.fx.GraphModule:
        with torch.no_grad(), no_new_guards(fake_mode), fake_mode or contextlib.nullcontext():
            return make_fx(run, tracing_mode="symbolic", _disable_torch_fn_metadata_mode=True)(*values)

    # The strides of a slice make torch guard on sizes of 1; ONNX has no memory layout.
    plain = values if any(node.target is _AS_STRIDED for node in region) else [contiguous(value) for value in values]
    try:
        try:
            return traced(values)
        except RuntimeError:
            if all(one is other for one, other in zip(plain, values, strict=True)):
                raise
            return traced(plain)
    except Exception as error:
        where = next((node for node in region if node.meta.get("stack_trace")), region[0])
        raise PrepareError(
            f"torch.vmap at {source_line(where)} cannot be converted to calls on whole batches: {error}",
            hint="write the function for the whole batch, without vmap",
        ) from error
