"""Regions that torch.export leaves as calls of sub-graphs become part of the graph that calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from fxonnx_translations._torch_compat import HigherOrderOperator, check_is_size

from .._provenance import source_line
from ..errors import PrepareError
from .autocast import Autocast, AutocastState, Dtypes, dtypes_of, evaluate
from .graph_utils import between, erase_unused, find_attribute, lift, module_attribute, replace_node, splice
from .vmap import inline_vmap, is_vmap

__all__ = ["inline"]

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

Call = tuple[Any, tuple[Any, ...], AutocastState]
"""The ``get_attr`` node of the body, its arguments, and where autocast is on inside."""


def _grad_mode(node: torch.fx.Node, state: AutocastState) -> Call:
    _enabled, body, *operands = node.args
    return body, tuple(operands), state


def _autocast(node: torch.fx.Node, state: AutocastState) -> Call:
    arguments: Any = node.args
    device, dtype, enabled, _cache, body, *operands = arguments
    inner = dict(state)
    if enabled:
        inner[device] = dtype or torch.get_autocast_dtype(device)
    else:
        inner.pop(device, None)
    return body, tuple(operands), inner


def _subgraph(node: torch.fx.Node, state: AutocastState) -> Call:
    body, _identifier, *operands = node.args
    return body, tuple(operands), state


def _plain(node: torch.fx.Node, state: AutocastState) -> Call:
    body, *operands = node.args
    return body, tuple(operands), state


def _packed(node: torch.fx.Node, state: AutocastState) -> Call:
    arguments: Any = node.args
    body, operands = arguments[:2]
    return body, tuple(operands), state


_higher_order = torch.ops.higher_order

_WRAPPERS: Mapping[Any, Callable[[torch.fx.Node, AutocastState], Call]] = {
    _higher_order.wrap_with_set_grad_enabled: _grad_mode,
    _higher_order.wrap_with_autocast: _autocast,
    _higher_order.invoke_subgraph: _subgraph,
    _higher_order.wrap: _plain,
    _higher_order.tag_activation_checkpoint: _plain,
    _higher_order.wrap_activation_checkpoint: _plain,
    _higher_order.strict_mode: _packed,
    _higher_order.hints_wrapper: _packed,
}


def inline(gm: torch.fx.GraphModule) -> None:
    """Splices wrapped regions into the graph and drops assertions, in place.

    Regions are ``torch.no_grad``, ``torch.autocast``, ``nested_compile_region`` and checkpointed functions, nested ones
    included. What autocast does becomes explicit casts. The bodies of ``cond``, ``while_loop``, ``scan`` and the like
    stay sub-graphs; they are replaced by copies, so that later passes may change them.

    Args:
        gm: A copy of the caller's own of the captured graph module; its sub-graphs may still be the captured ones.

    Raises:
        PrepareError: If a region can not be inlined.
    """
    _Inliner().run(gm, {})


class _Bodies:
    """The sub-graphs of one graph module."""

    def __init__(self, owner: torch.fx.GraphModule) -> None:
        self._owner = owner
        self._ours: set[str] = set()
        self._spliced = False

    def module(self, reference: torch.fx.Node) -> torch.fx.GraphModule:
        """The sub-graph a ``get_attr`` node refers to."""
        body = module_attribute(self._owner, reference)
        if not isinstance(body, torch.fx.GraphModule):
            raise PrepareError(f"{reference.target!r} is called as a sub-graph, but is a {type(body).__name__}")
        return body

    def adopt(self, reference: torch.fx.Node) -> torch.fx.GraphModule | None:
        """Replaces a sub-graph that stays one by a copy of our own.

        Returns:
            The copy, or None if that was done before or ``reference`` is no sub-graph.
        """
        target = str(reference.target)
        if not isinstance(find_attribute(self._owner, target), torch.fx.GraphModule):
            return None
        if target in self._ours:
            return None
        self._ours.add(target)
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
        """Puts the graph of a body in the place of its call; returns the new nodes, and the node to go on with."""
        self._spliced = True
        module = self.module(body)
        count = sum(1 for node in module.graph.nodes if node.op == "placeholder")
        if count != len(operands):
            raise PrepareError(
                f"{call.target} at {source_line(call)} gives {len(operands)} arguments to a sub-graph of {count}"
            )

        def attribute(node: torch.fx.Node) -> str:
            return lift(
                self._owner, f"{call.name}_{str(node.target).replace('.', '_')}", module_attribute(module, node)
            )

        before = call.prev
        result = splice(call.graph, call, module.graph, operands, attribute)
        made = between(before, call)
        replace_node(call, result, made)
        following = made[0] if made else call.next
        call.graph.erase_node(call)
        erase_unused([body])
        return made, following

    def tidy(self) -> None:
        """Forgets the sub-graphs that have become part of the graph."""
        if self._spliced:
            self._owner.delete_all_unused_submodules()


class _Inliner:
    """One run over a graph and the sub-graphs it calls."""

    def __init__(self) -> None:
        self._autocast = Autocast()

    def run(self, owner: torch.fx.GraphModule, outside: AutocastState) -> None:
        """Inlines what the graph of ``owner`` calls, with autocast on outside as given."""
        walk = _Walk(_Bodies(owner), outside)
        has_vmap = False
        node = next(iter(owner.graph.nodes))
        while node.op != "root":
            following = node.next
            if node.op == "call_function":
                if node.target in _WRAPPERS:
                    following = walk.splice(node)
                elif node.target in _ASSERTIONS:
                    walk.check(node)
                    _drop(node)
                elif isinstance(node.target, HigherOrderOperator):
                    for body, state in walk.keep(node):
                        self.run(body, state)
                elif not walk.is_plain:
                    following = self._cast(owner, walk, node) or following
                has_vmap = has_vmap or is_vmap(node.target)
            elif node.op == "call_module" and str(node.target).endswith("_guards_fn"):
                _drop(node)
            node = following
        if has_vmap:
            inline_vmap(owner)
        walk.bodies.tidy()

    def _cast(self, owner: torch.fx.GraphModule, walk: _Walk, node: torch.fx.Node) -> torch.fx.Node | None:
        """Applies autocast to a call; returns where to go on if the call was replaced."""
        state = walk.state(node)
        outcome = self._autocast.apply(owner, node, state)
        if outcome.opened:
            walk.enter(outcome.opened, state)
            return outcome.opened[0]
        walk.refresh(node, outcome.dtypes)
        return None


class _Walk:
    """Where one walk over a graph is: autocast regions and values that differ from what torch.export noted."""

    def __init__(self, bodies: _Bodies, outside: AutocastState) -> None:
        self.bodies = bodies
        self._outside = outside
        self._states: dict[torch.fx.Node, AutocastState] = {}
        # Strict mode captures autocast regions as if it were off, so that dtypes from there on are not what was noted.
        self._changed: set[torch.fx.Node] = set()

    def state(self, node: torch.fx.Node) -> AutocastState:
        return self._states.get(node, self._outside)

    def enter(self, nodes: Iterable[torch.fx.Node], state: AutocastState) -> None:
        """Notes under which autocast new nodes run."""
        if state != self._outside:
            self._states.update(dict.fromkeys(nodes, state))

    @property
    def is_plain(self) -> bool:
        """Whether there was no autocast so far, so that calls are what was captured."""
        return not (self._states or self._outside or self._changed)

    def splice(self, call: torch.fx.Node) -> torch.fx.Node:
        body, operands, state = _WRAPPERS[call.target](call, self.state(call))
        made, following = self.bodies.splice(call, body, operands)
        self.enter(made, state)
        return following

    def keep(self, call: torch.fx.Node) -> list[tuple[torch.fx.GraphModule, AutocastState]]:
        """The sub-graphs of an operator that stays, with what they run under, each once."""
        if not self._changed.isdisjoint(call.all_input_nodes):
            raise PrepareError(
                f"{call.target} at {source_line(call)} reads a value computed under autocast, "
                "whose dtype strict capture does not know",
                hint="capture the model with strict=False",
            )
        state = self.state(call)
        adopted = [self.bodies.adopt(source) for source in call.all_input_nodes if source.op == "get_attr"]
        return [(body, state) for body in adopted if body is not None]

    def check(self, assertion: torch.fx.Node) -> None:
        """Raises if a conversion of dtype was captured for another dtype than its input has.

        What strict capture took for a conversion to the same dtype, it may have replaced by its input elsewhere.
        """
        if not self._changed.isdisjoint(assertion.all_input_nodes):
            raise PrepareError(
                f"strict capture took the dtype conversion at {source_line(assertion)} for one of "
                f"{assertion.kwargs.get('dtype')}, but under autocast its input has another dtype",
                hint="capture the model with strict=False",
            )

    def refresh(self, node: torch.fx.Node, expected: Dtypes | None) -> None:
        """Computes a value again if its dtype can differ from the one noted."""
        noted = node.meta.get("val")
        if self._changed.isdisjoint(node.all_input_nodes) and expected in (None, dtypes_of(noted)):
            return
        found = evaluate(node)
        if dtypes_of(found) != dtypes_of(noted):
            node.meta["val"] = found
            node.meta.pop("tensor_meta", None)
            self._changed.add(node)


def _drop(node: torch.fx.Node) -> None:
    inputs = node.all_input_nodes
    if not node.users:
        node.graph.erase_node(node)
        erase_unused(inputs)
