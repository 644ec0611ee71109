"""Rewrite in-place ops and ``out=`` variants to functional operators that return the new content."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx import Graph, Node, map_arg

from fxonnx_translations._torch_compat import OpOverload

from ..._nodes import input_of, operator_of, schema_of
from ..graph_utils import fake_mode_of
from ..sizes import element_count, same_shape
from .aliases import Alias, Memory, storage_id
from .emit import Emitter, arguments_with_defaults, refuse

__all__ = ["InplaceRewriter", "functional_overload", "replace_resized"]

aten = torch.ops.aten

# Functional operators whose name is not the in-place name without its underscore.
_OTHER_NAMES = {
    "normal_": "normal_functional",
    "__ior__": "bitwise_or",
    "__iand__": "bitwise_and",
    "__ixor__": "bitwise_xor",
    "__ilshift__": "__lshift__",
    "__irshift__": "__rshift__",
    "_index_put_impl_": "index_put",
}
# The in-place variants write 0 and 1 in the tensor's dtype, the functional ones return bool.
_PREDICATES = frozenset(
    {
        *("eq", "ne", "lt", "le", "gt", "ge"),
        *("not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("logical_and", "logical_or", "logical_xor", "logical_not"),
    }
)
# Prefixes of operators whose other tensors are masks and indices, which do not take part in type promotion.
_INDEXED_WRITES = ("index_", "scatter", "masked_", "put")


class InplaceRewriter:
    """Rewrites nodes that mutate tensors to functional calls.

    Args:
        emitter: Inserts nodes.
        memory: Reads aliases.
        resolve: Returns the node with the current content of any node of the graph.
    """

    def __init__(self, emitter: Emitter, memory: Memory, resolve: Callable[[Node], Node]) -> None:
        self._emitter = emitter
        self._memory = memory
        self._resolve = resolve
        self._functional: dict[Any, OpOverload | None] = {}

    def in_place(self, node: Node, alias: Alias) -> Node:
        """Rewrite an in-place op on ``alias`` and return the new content of the alias.

        Args:
            node: The in-place op; it becomes a functional call if the operator has a functional variant.
            alias: The alias of its first argument.

        Raises:
            PrepareError: If the operator has no functional form.
        """
        name = schema_of(node).name
        if name == "aten::copy_":
            return self._copy_value(node, self._resolve(arguments_with_defaults(node)["src"]), alias)
        if name == "prims::copy_to":
            return self._copy_value(node, self._resolve(arguments_with_defaults(node)["b"]), alias)
        if name == "aten::zero_":
            return self._fill(node, 0, alias)
        if name == "aten::fill_":
            value = arguments_with_defaults(node)["value"]
            if node.target is aten.fill_.Tensor:
                return self._copy_value(node, self._resolve(value), alias)
            return self._fill(node, value, alias)
        if name == "aten::fill_diagonal_":
            return self._fill_diagonal(node, alias)
        functional = self._function(node)
        if functional is None:
            refuse(
                node,
                "this in-place operator has no functional form",
                hint="write the model with an operator that returns its result, or decompose it before export",
            )
        required = [found.name for found in functional._schema.arguments if not found.has_default_value()]
        if len(node.args) < len(required):
            # Operators like bernoulli_ have a default that the functional variant lacks.
            bound = arguments_with_defaults(node)
            missing = [bound[name] for name in required[len(node.args) :] if name not in node.kwargs]
            node.args = (*node.args, *missing)
        node.args, node.kwargs = map_arg((node.args, dict(node.kwargs)), self._resolve)
        dtype = _result_dtype(node, functional, alias.val.dtype)
        node.target = functional
        # The functional variant has a result even if the in-place op returns nothing.
        node.meta["val"] = alias.val
        return self._cast_after(node, node, dtype, alias.val)

    def _function(self, node: Node) -> OpOverload | None:
        target = node.target
        if target not in self._functional:
            self._functional[target] = functional_overload(operator_of(node))
        return self._functional[target]

    def _cast_after(self, node: Node, result: Node, dtype: torch.dtype, wanted: torch.Tensor) -> Node:
        """Cast the result of the functional call to the dtype of the mutated tensor."""
        if dtype == wanted.dtype:
            return result
        with fake_mode_of((wanted,)):
            result.meta["val"] = wanted.to(dtype)
        self._emitter.anchor = node.next
        return self._emitter.call(aten.to.dtype, (result, wanted.dtype), val=wanted, origin=node)

    def _copy_value(self, node: Node, value: Node, alias: Alias) -> Node:
        """Cast and expand ``value`` to the dtype and shape of the alias, as ``copy_`` does."""
        val = value.meta["val"]
        if val.dtype != alias.val.dtype:
            with val.fake_mode:
                val = val.to(alias.val.dtype)
            value = self._emitter.call(aten.to.dtype, (value, alias.val.dtype), val=val, origin=node)
        if same_shape(val, alias.val):
            return value
        shape = self._shape(alias)
        return self._emitter.call(aten.expand.default, (value, shape), val=alias.val, origin=node)

    def _shape(self, alias: Alias) -> Any:
        return self._emitter.shape(alias.val, lambda: self._memory.witness_of(alias))

    def _fill(self, node: Node, value: Any, alias: Alias) -> Node:
        node.args = (self._shape(alias), value)
        node.kwargs = {"dtype": alias.val.dtype, "device": alias.val.device}
        node.target = aten.full.default
        return node

    def _fill_diagonal(self, node: Node, alias: Alias) -> Node:
        arguments = arguments_with_defaults(node)
        if alias.val.dim() != 2 or arguments["wrap"]:
            refuse(node, "fill_diagonal_ has a functional form for matrices without wrap only")
        with fake_mode_of((alias.val,)):
            val = alias.val.diagonal()
        before = self._memory.read(alias)
        diagonal = self._emitter.call(aten.diagonal.default, (before,), val=val, origin=node)
        args = (diagonal, arguments["fill_value"])
        filled = self._emitter.call(aten.full_like.default, args, val=val, origin=node)
        node.target, node.args, node.kwargs = aten.diagonal_scatter.default, (before, filled), {}
        return node

    def out_variant(self, node: Node, aliases: dict[str, Alias]) -> list[Node]:
        """Rewrite an ``out=`` variant and return the new contents of the ``out`` tensors.

        Args:
            node: The call; it becomes the functional call.
            aliases: The aliases of the ``out`` arguments, by schema name.

        Raises:
            PrepareError: If the operator has no functional form or would resize an ``out`` tensor.
        """
        functional = self._function(node)
        if functional is None:
            refuse(node, "this operator writes to its arguments and has no functional form")
        wanted = [alias.val for alias in aliases.values()]
        args, kwargs = map_arg((node.args, dict(node.kwargs)), self._resolve)
        names = [argument.name for argument in schema_of(node).arguments[: len(args)]]
        node.args = tuple(argument for name, argument in zip(names, args, strict=True) if name not in aliases)
        node.kwargs = {name: argument for name, argument in kwargs.items() if name not in aliases}
        node.target = functional
        fake_args, fake_kwargs = map_arg((node.args, dict(node.kwargs)), lambda argument: argument.meta["val"])
        with fake_mode_of(wanted):
            val = functional(*fake_args, **fake_kwargs)
        node.meta["val"] = val
        self._emitter.anchor = node.next
        results = [node]
        if not isinstance(val, torch.Tensor):
            results = [_getitem(self._emitter, node, index) for index in range(len(wanted))]
        for result, target in zip(results, wanted, strict=True):
            if not same_shape(result.meta["val"], target):
                refuse(
                    node,
                    f"the out tensor of shape {tuple(target.shape)}, whose memory is used elsewhere, would be resized",
                )
        return [self._copy_value(node, result, alias) for result, alias in zip(results, aliases.values(), strict=True)]

    def mutated_arguments(self, node: Node, aliases: dict[str, Alias]) -> list[Node]:
        """Rewrite an operator that mutates arguments and returns new tensors; return the mutated arguments' contents.

        Args:
            node: The call, such as a batch normalization that updates its statistics; it becomes a call of the
                ``_functional`` operator, which returns the new contents after its results.
            aliases: The aliases of the mutated arguments, by schema name.

        Raises:
            PrepareError: If the operator has no functional form.
        """
        namespace, _, name = schema_of(node).name.partition("::")
        functional = getattr(getattr(getattr(torch.ops, namespace), f"{name}_functional", None), "default", None)
        if functional is None:
            refuse(node, "this operator writes to its arguments and has no functional form")
        node.args, node.kwargs = map_arg((node.args, dict(node.kwargs)), self._resolve)
        node.target = functional
        results, contents = node.meta["val"], [alias.val for alias in aliases.values()]
        self._emitter.anchor = node.next
        if isinstance(results, torch.Tensor):
            results = [results]
            node.meta["val"] = (*results, *contents)
            users = list(node.users)
            only = _getitem(self._emitter, node, 0)
            for user in users:
                user.replace_input_with(node, only)
        node.meta["val"] = (*results, *contents)
        first = len(results)
        return [_getitem(self._emitter, node, first + index) for index in range(len(contents))]


def _getitem(emitter: Emitter, node: Node, index: int) -> Node:
    return emitter.call(operator.getitem, (node, index), val=node.meta["val"][index], origin=node)


def functional_overload(target: OpOverload) -> OpOverload | None:
    """The functional overload with the same arguments, without the ``out`` tensors."""
    schema = target._schema
    namespace, _, name = schema.name.partition("::")
    is_out = not name.endswith("_")
    name = _OTHER_NAMES.get(name, name if is_out else name.removesuffix("_"))
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        return None
    wanted = [
        str(argument.type)
        for argument in schema.arguments
        if not (is_out and argument.alias_info is not None and argument.alias_info.is_write)
    ]
    results = ["Tensor"] * len([argument for argument in schema.arguments if argument.alias_info is not None])
    for overload in packet.overloads():
        found: OpOverload = getattr(packet, overload)
        types = [str(argument.type) for argument in found._schema.arguments]
        returned = [str(result.type) for result in found._schema.returns]
        if types == wanted and returned == results and not found._schema.is_mutable:
            return found
    return None


def _result_dtype(node: Node, functional: OpOverload, own: torch.dtype) -> torch.dtype:
    """The dtype of the functional operator's result, before the cast to the dtype of the mutated tensor."""
    name = functional._schema.name.partition("::")[2]
    operands = [source.meta.get("val") for source in node.all_input_nodes]
    if name not in _PREDICATES and (
        name.startswith(_INDEXED_WRITES)
        or all(operand.dtype == own for operand in operands if isinstance(operand, torch.Tensor))
    ):
        return own

    def example(argument: Node) -> Any:
        val = argument.meta["val"]
        if isinstance(val, torch.Tensor):
            return torch.empty([1] * val.dim(), dtype=val.dtype, device="meta")
        for symbolic, number in ((torch.SymInt, 1), (torch.SymFloat, 1.0), (torch.SymBool, True)):
            if isinstance(val, symbolic):
                return number
        return val

    args, kwargs = map_arg((node.args, dict(node.kwargs)), example)
    result: torch.Tensor = functional(*args, **kwargs)
    return result.dtype


def replace_resized(graph: Graph, scratch: Collection[str]) -> list[tuple[Node, Node]]:
    """Replace operators that resize a tensor by the functional ones, in place.

    Args:
        graph: A graph as captured by torch.export.
        scratch: Names of the placeholders that may be resized: those of buffers and constants.

    Returns:
        The tensors that are resized, each with the node of its new content.
    """
    resized, assigned = [], []
    for node in graph.nodes:
        target = node.target
        if node.op != "call_function" or not isinstance(target, OpOverload):
            continue
        if target is aten.set_.source_Tensor and _is_last_use(node, scratch):
            resized.append((node.args[0], node.args[1]))
            assigned.append(node)
            continue
        old = _resized_tensor(node, target)
        if old is None or not _is_own_memory(old, node, scratch):
            continue
        if target is aten.resize_.default:
            node.target, node.args, node.kwargs = aten.new_empty.default, (old, node.args[1]), {}
            resized.append((old, node))
        elif (functional := functional_overload(target)) is not None:
            resized.append((old, _make_functional(node, functional, old)))
    for node in assigned:
        graph.erase_node(node)
    return resized


def _is_last_use(node: Node, scratch: Collection[str]) -> bool:
    """Whether a tensor becomes another one after its last use, as the capture writes an assigned buffer."""
    old = input_of(node)
    return old.op == "placeholder" and old.name in scratch and not node.users and next(reversed(old.users)) is node


def _resized_tensor(node: Node, target: OpOverload) -> Node | None:
    """The tensor that a call resizes without a use of its content; None if there is none."""
    if target is aten.resize_.default:
        old = input_of(node)
        return old if element_count(old.meta["val"]) == 0 else None
    written = [argument for argument in target._schema.arguments if argument.alias_info is not None]
    if len(written) != 1 or not written[0].is_out:
        return None
    tensor = node.kwargs.get(written[0].name)
    if not isinstance(tensor, Node) or same_shape(node.meta["val"], tensor.meta["val"]):
        return None
    return tensor


def _is_own_memory(old: Node, node: Node, scratch: Collection[str]) -> bool:
    """Whether no other node before, and no node after, uses the memory of a tensor that a node resizes."""
    if old.op == "placeholder" and old.name not in scratch:
        return False
    key, is_before = storage_id(old.meta["val"]), True
    for other in old.graph.nodes:
        if other is node:
            is_before = False
        elif (other is not old and is_before and storage_id(other.meta.get("val")) == key) or (
            not is_before and old in other.all_input_nodes
        ):
            return False
    return key is not None


def _make_functional(node: Node, functional: OpOverload, old: Node) -> Node:
    """Make a functional call of an ``out=`` variant, and return its result in the dtype of the tensor."""
    node.kwargs = {name: argument for name, argument in node.kwargs.items() if argument is not old}
    node.target, wanted = functional, node.meta["val"]
    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda argument: argument.meta["val"])
    with fake_mode_of((wanted,)):
        val = functional(*args, **kwargs)
    if val.dtype == wanted.dtype:
        return node
    node.meta["val"] = val
    with node.graph.inserting_after(node):
        cast = node.graph.call_function(aten.to.dtype, (node, wanted.dtype))
    cast.meta = {**node.meta, "val": wanted}
    node.replace_all_uses_with(cast, delete_user_cb=lambda user: user is not cast)
    return cast
