"""Inline the subgraphs of regions such as ``torch.no_grad``, which torch.export captures as higher-order operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from fxonnx_translations._torch_compat import HigherOrderOperator, check_is_size

from .._provenance import REGIONS_KEY, source_line
from ..errors import PrepareError
from .autocast import AutocastRewriter, AutocastState, Dtypes, dtypes_of, evaluate
from .flex_attention import drop_block_masks, expand_flex_attention
from .graph_utils import (
    erase_unused,
    find_attribute,
    module_attribute,
    nodes_between,
    replace_node,
    splice,
    store_attribute,
)
from .vmap import inline_vmap, is_vmap, restore_switches

__all__ = ["inline_subgraphs"]

aten = torch.ops.aten

_ASSERTIONS = frozenset(
    {
        aten._assert_async.default,
        aten._assert_async.msg,
        aten._assert_scalar.default,
        aten._assert_tensor_metadata.default,
        aten.sym_constrain_range.default,
        aten.sym_constrain_range_for_size.default,
        torch._check,
        check_is_size,
    }
)

_RegionCall = tuple[Any, tuple[Any, ...], AutocastState]
"""The ``get_attr`` node of the subgraph, its arguments, and the autocast state inside."""


def _grad_mode(node: torch.fx.Node, state: AutocastState) -> _RegionCall:
    _enabled, body, *operands = node.args
    return body, tuple(operands), state


def _autocast(node: torch.fx.Node, state: AutocastState) -> _RegionCall:
    arguments: Any = node.args
    device, dtype, enabled, _cache, body, *operands = arguments
    inner = dict(state)
    if enabled:
        inner[device] = dtype or torch.get_autocast_dtype(device)
    else:
        inner.pop(device, None)
    return body, tuple(operands), inner


def _invoke_subgraph(node: torch.fx.Node, state: AutocastState) -> _RegionCall:
    body, _identifier, *operands = node.args
    return body, tuple(operands), state


def _body_first(node: torch.fx.Node, state: AutocastState) -> _RegionCall:
    body, *operands = node.args
    return body, tuple(operands), state


def _operands_packed(node: torch.fx.Node, state: AutocastState) -> _RegionCall:
    arguments: Any = node.args
    body, operands = arguments[:2]
    return body, tuple(operands), state


_higher_order = torch.ops.higher_order

_WRAPPERS: Mapping[Any, Callable[[torch.fx.Node, AutocastState], _RegionCall]] = {
    _higher_order.wrap_with_set_grad_enabled: _grad_mode,
    _higher_order.wrap_with_autocast: _autocast,
    _higher_order.invoke_subgraph: _invoke_subgraph,
    _higher_order.wrap: _body_first,
    _higher_order.tag_activation_checkpoint: _body_first,
    _higher_order.wrap_activation_checkpoint: _body_first,
    _higher_order.strict_mode: _operands_packed,
    _higher_order.hints_wrapper: _operands_packed,
}


def inline_subgraphs(gm: torch.fx.GraphModule) -> None:
    """Splice wrapped regions into the graph and remove assertions, in place.

    Regions are ``torch.no_grad``, ``torch.autocast``, ``nested_compile_region`` and checkpointed functions, also nested
    ones. Autocast becomes explicit casts. The subgraphs of control flow operators (``cond``, ``while_loop``, ``scan``)
    are not inlined but replaced by copies, so that later passes may change them.

    Args:
        gm: A copy of the captured graph module; its subgraphs may still be the captured ones.

    Raises:
        PrepareError: If a region cannot be inlined.
    """
    _Inliner().run(gm, {})


class _Subgraphs:
    """The subgraphs of one graph module."""

    def __init__(self, owner: torch.fx.GraphModule) -> None:
        self._owner = owner
        self._copied: set[str] = set()
        self._spliced: set[str] = set()

    def module(self, reference: torch.fx.Node) -> torch.fx.GraphModule:
        """The subgraph a ``get_attr`` node refers to."""
        body = module_attribute(self._owner, reference)
        if not isinstance(body, torch.fx.GraphModule):
            raise PrepareError(f"{reference.target!r} is called as a subgraph, but is a {type(body).__name__}")
        return body

    def copy_once(self, reference: torch.fx.Node) -> torch.fx.GraphModule | None:
        """Replace a subgraph that is not inlined by a copy; None if it was copied before, or is another attribute."""
        target = str(reference.target)
        if not isinstance(find_attribute(self._owner, target), torch.fx.GraphModule):
            return None
        if target in self._copied:
            return None
        self._copied.add(target)
        body = self.module(reference)
        graph = torch.fx.Graph()
        result: Any = graph.graph_copy(body.graph, {}, return_output_node=True)
        graph.output(result[0]).meta.update(result[1].meta)
        own = torch.fx.GraphModule(body, graph)
        self._owner.set_submodule(target, own)
        return own

    def splice(
        self, call: torch.fx.Node, body: torch.fx.Node, operands: tuple[Any, ...]
    ) -> tuple[list[torch.fx.Node], torch.fx.Node]:
        """Replace a call by the nodes of its subgraph; return the new nodes, and the node to continue with."""
        self._spliced.add(str(body.target))
        module = self.module(body)
        count = sum(1 for node in module.graph.nodes if node.op == "placeholder")
        if count != len(operands):
            raise PrepareError(
                f"{call.target} at {source_line(call)} passes {len(operands)} arguments to a subgraph of {count} inputs"
            )

        def attribute(node: torch.fx.Node) -> str:
            return store_attribute(
                self._owner, f"{call.name}_{str(node.target).replace('.', '_')}", module_attribute(module, node)
            )

        before = call.prev
        result = splice(call.graph, call, module.graph, operands, attribute)
        made = nodes_between(before, call)
        replace_node(call, result, made)
        following = made[0] if made else call.next
        call.graph.erase_node(call)
        erase_unused([body])
        return made, following

    def delete_unused(self) -> None:
        """Delete the subgraphs that have been inlined.

        Not by ``delete_all_unused_submodules``, which also deletes the subgraphs of a subgraph that is not inlined.
        """
        graph = self._owner.graph
        for target in sorted(self._spliced - {str(node.target) for node in graph.find_nodes(op="get_attr")}):
            self._owner.delete_submodule(target)


class _Inliner:
    """One run over a graph and its subgraphs."""

    def __init__(self) -> None:
        self._autocast = AutocastRewriter()

    def run(self, owner: torch.fx.GraphModule, outside: AutocastState) -> None:
        """Inline the regions in the graph of ``owner``, which runs under the autocast state ``outside``."""
        tracker = _RegionTracker(_Subgraphs(owner), outside)
        has_vmap = False
        node = next(iter(owner.graph.nodes))
        while node.op != "root":
            following = node.next
            if node.op == "call_function":
                if node.target in _WRAPPERS:
                    following = tracker.splice(node)
                elif node.target in _ASSERTIONS:
                    tracker.check_assertion(node)
                    _erase_with_inputs(node)
                elif isinstance(node.target, HigherOrderOperator):
                    for body, state in tracker.kept_subgraphs(node):
                        self.run(body, state)
                elif not tracker.is_unchanged:
                    following = self._cast(owner, tracker, node) or following
                has_vmap = has_vmap or is_vmap(node.target)
            elif node.op == "call_module" and str(node.target).endswith("_guards_fn"):
                _erase_with_inputs(node)
            node = following
        if has_vmap:
            restore_switches(owner.graph)
        drop_block_masks(owner.graph)
        if has_vmap:
            inline_vmap(owner)
        expand_flex_attention(owner)
        tracker.subgraphs.delete_unused()

    def _cast(self, owner: torch.fx.GraphModule, tracker: _RegionTracker, node: torch.fx.Node) -> torch.fx.Node | None:
        """Apply autocast to a call; return the node to continue with if the call was replaced."""
        state = tracker.state(node)
        outcome = self._autocast.apply(owner, node, state)
        if outcome.decomposed:
            tracker.enter(outcome.decomposed, state)
            return outcome.decomposed[0]
        tracker.update_value(node, outcome.dtypes)
        return None


class _RegionTracker:
    """The autocast state of inlined nodes, and nodes whose dtype differs from the captured one."""

    def __init__(self, subgraphs: _Subgraphs, outside: AutocastState) -> None:
        self.subgraphs = subgraphs
        self._outside = outside
        self._states: dict[torch.fx.Node, AutocastState] = {}
        # Strict mode captures autocast regions with autocast disabled: the captured dtypes are wrong from there on.
        self._changed: set[torch.fx.Node] = set()

    def state(self, node: torch.fx.Node) -> AutocastState:
        """The autocast state under which a node runs."""
        return self._states.get(node, self._outside)

    def enter(self, nodes: Iterable[torch.fx.Node], state: AutocastState) -> None:
        """Record the autocast state of new nodes."""
        if state != self._outside:
            self._states.update(dict.fromkeys(nodes, state))

    @property
    def is_unchanged(self) -> bool:
        """Whether no autocast region occurred yet, so that the captured calls and dtypes are correct."""
        return not (self._states or self._outside or self._changed)

    def splice(self, call: torch.fx.Node) -> torch.fx.Node:
        """Inline a region call and record the autocast state of its nodes; return the node to continue with."""
        body, operands, state = _WRAPPERS[call.target](call, self.state(call))
        made, following = self.subgraphs.splice(call, body, operands)
        regions = call.meta.get(REGIONS_KEY, ())
        if call.target is _higher_order.invoke_subgraph:
            regions += ((call.name, str(body.target)),)
        if regions:
            for node in made:
                node.meta[REGIONS_KEY] = regions
        self.enter(made, state)
        return following

    def kept_subgraphs(self, call: torch.fx.Node) -> list[tuple[torch.fx.GraphModule, AutocastState]]:
        """Copies of the subgraphs of an operator that is not inlined, each once, with their autocast state."""
        if not self._changed.isdisjoint(call.all_input_nodes):
            raise PrepareError(
                f"{call.target} at {source_line(call)} reads a value computed under autocast, "
                "whose dtype strict capture does not record",
                hint="capture the model with strict=False",
            )
        state = self.state(call)
        adopted = [self.subgraphs.copy_once(source) for source in call.all_input_nodes if source.op == "get_attr"]
        return [(body, state) for body in adopted if body is not None]

    def check_assertion(self, assertion: torch.fx.Node) -> None:
        """Raise if an asserted dtype conversion was captured with another input dtype than the actual one.

        Strict capture may have eliminated a conversion that seemed to be one to the same dtype.
        """
        if not self._changed.isdisjoint(assertion.all_input_nodes):
            raise PrepareError(
                f"strict capture recorded the input of the dtype conversion at {source_line(assertion)} as "
                f"{assertion.kwargs.get('dtype')}, but under autocast it has another dtype",
                hint="capture the model with strict=False",
            )

    def update_value(self, node: torch.fx.Node, expected: Dtypes | None) -> None:
        """Recompute the fake value of a node if its dtype may differ from the captured one."""
        noted = node.meta.get("val")
        if self._changed.isdisjoint(node.all_input_nodes) and expected in (None, dtypes_of(noted)):
            return
        found = evaluate(node) if expected is None else _in_dtypes(noted, expected)
        if dtypes_of(found) != dtypes_of(noted):
            node.meta["val"] = found
            node.meta.pop("tensor_meta", None)
            self._changed.add(node)


def _in_dtypes(noted: Any, dtypes: Dtypes) -> Any:
    """Return fake values in other dtypes; running the call again could specialize its dims."""
    values = noted if isinstance(noted, (list, tuple)) else [noted]
    found = [
        value if dtype in (None, value.dtype) else value.to(dtype) for value, dtype in zip(values, dtypes, strict=True)
    ]
    return type(noted)(found) if isinstance(noted, (list, tuple)) else found[0]


def _erase_with_inputs(node: torch.fx.Node) -> None:
    inputs = node.all_input_nodes
    if not node.users:
        node.graph.erase_node(node)
        erase_unused(inputs)
