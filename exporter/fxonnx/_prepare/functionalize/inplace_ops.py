"""In-place operators as functions: the value a tensor has after the write."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node, map_arg

from fxonnx_translations._torch_compat import OpOverload

from .aliases import Alias, Memory
from .emit import Emitter, bind, refuse, same_size

__all__ = ["Writer"]

aten = torch.ops.aten

# The functional operator where it is not the in-place name without its underscore.
_OTHER_NAMES = {
    "normal_": "normal_functional",
    "__ior__": "bitwise_or",
    "__iand__": "bitwise_and",
    "__ixor__": "bitwise_xor",
    "__ilshift__": "__lshift__",
    "__irshift__": "__rshift__",
    "_index_put_impl_": "index_put",
}
# In place these write 0 and 1 in the tensor's own dtype, as functions they return bool.
_PREDICATES = frozenset(
    {
        *("eq", "ne", "lt", "le", "gt", "ge"),
        *("not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("logical_and", "logical_or", "logical_xor", "logical_not"),
    }
)
# Their other tensors are masks and indices, which do not take part in the type promotion.
_PLACING = ("index_", "scatter", "masked_", "put")


class Writer:
    """Turns the nodes that write into nodes that compute.

    Args:
        emitter: Adds nodes.
        memory: Reads aliases.
        resolve: Gives the node that holds the current content of any node of the graph.
    """

    def __init__(self, emitter: Emitter, memory: Memory, resolve: Callable[[Node], Node]) -> None:
        self._emitter = emitter
        self._memory = memory
        self._resolve = resolve
        self._functional: dict[Any, OpOverload | None] = {}

    def in_place(self, node: Node, alias: Alias) -> Node:
        """The content of ``alias`` after ``node``, an in-place operator on it.

        Args:
            node: The node; it becomes a functional call where there is a function of the same arguments.
            alias: What its first argument looks at.

        Raises:
            PrepareError: If the operator has no functional form.
        """
        name = node.target._schema.name  # type: ignore[union-attr]
        if name == "aten::copy_":
            return self._as_content(node, self._resolve(bind(node)["src"]), alias)
        if name == "prims::copy_to":
            return self._as_content(node, self._resolve(bind(node)["b"]), alias)
        if name == "aten::zero_":
            return self._fill(node, 0, alias)
        if name == "aten::fill_":
            value = bind(node)["value"]
            if node.target is aten.fill_.Tensor:
                return self._as_content(node, self._resolve(value), alias)
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
            # bernoulli_ and its like have a default where the function has none.
            bound = bind(node)
            missing = [bound[name] for name in required[len(node.args) :] if name not in node.kwargs]
            node.args = (*node.args, *missing)
        node.args, node.kwargs = map_arg((node.args, dict(node.kwargs)), self._resolve)
        dtype = _result_dtype(node, functional, alias.val.dtype)
        node.target = functional
        # An operator that returns nothing in place returns its result as a function.
        node.meta["val"] = alias.val
        return self._cast_after(node, node, dtype, alias.val)

    def _function(self, node: Node) -> OpOverload | None:
        target = node.target
        if target not in self._functional:
            self._functional[target] = _functional_overload(target)  # type: ignore[arg-type]
        return self._functional[target]

    def _cast_after(self, node: Node, result: Node, dtype: torch.dtype, wanted: torch.Tensor) -> Node:
        """Casts what the write computed to the dtype of the tensor written to."""
        if dtype == wanted.dtype:
            return result
        with wanted.fake_mode:  # type: ignore[attr-defined]
            result.meta["val"] = wanted.to(dtype)
        self._emitter.anchor = node.next
        return self._emitter.call(aten.to.dtype, (result, wanted.dtype), val=wanted, origin=node)

    def _as_content(self, node: Node, value: Node, alias: Alias) -> Node:
        """``value`` cast and expanded to fill the alias, as ``copy_`` does."""
        val = value.meta["val"]
        if val.dtype != alias.val.dtype:
            with val.fake_mode:
                val = val.to(alias.val.dtype)
            value = self._emitter.call(aten.to.dtype, (value, alias.val.dtype), val=val, origin=node)
        same_shape = val.dim() == alias.val.dim() and all(map(same_size, val.shape, alias.val.shape))
        if same_shape:
            return value
        shape = self._shape(alias)
        return self._emitter.call(aten.expand.default, (value, shape), val=alias.val, origin=node)

    def _shape(self, alias: Alias) -> Any:
        return self._emitter.shape(alias.val, lambda: self._memory.glimpse(alias))

    def _fill(self, node: Node, value: Any, alias: Alias) -> Node:
        node.args = (self._shape(alias), value)
        node.kwargs = {"dtype": alias.val.dtype, "device": alias.val.device}
        node.target = aten.full.default
        return node

    def _fill_diagonal(self, node: Node, alias: Alias) -> Node:
        arguments = bind(node)
        if alias.val.dim() != 2 or arguments["wrap"]:
            refuse(node, "fill_diagonal_ has a functional form for matrices without wrap only")
        with alias.val.fake_mode:  # type: ignore[attr-defined]
            val = alias.val.diagonal()
        before = self._memory.read(alias)
        diagonal = self._emitter.call(aten.diagonal.default, (before,), val=val, origin=node)
        args = (diagonal, arguments["fill_value"])
        filled = self._emitter.call(aten.full_like.default, args, val=val, origin=node)
        node.target, node.args, node.kwargs = aten.diagonal_scatter.default, (before, filled), {}
        return node

    def out(self, node: Node, aliases: dict[str, Alias]) -> list[Node]:
        """The contents of the tensors given as ``out=``, after the call.

        Args:
            node: The call; it becomes the functional call.
            aliases: What the ``out`` arguments look at, by schema name.

        Raises:
            PrepareError: If the operator has no functional form or would resize what it writes to.
        """
        functional = self._function(node)
        if functional is None:
            refuse(node, "this operator writes to its arguments and has no functional form")
        wanted = [alias.val for alias in aliases.values()]
        args, kwargs = map_arg((node.args, dict(node.kwargs)), self._resolve)
        names = [argument.name for argument in node.target._schema.arguments[: len(args)]]  # type: ignore[union-attr]
        node.args = tuple(argument for name, argument in zip(names, args, strict=True) if name not in aliases)
        node.kwargs = {name: argument for name, argument in kwargs.items() if name not in aliases}
        node.target = functional
        fake_args, fake_kwargs = map_arg((node.args, dict(node.kwargs)), lambda argument: argument.meta["val"])
        with wanted[0].fake_mode:  # type: ignore[attr-defined]
            val = functional(*fake_args, **fake_kwargs)
        node.meta["val"] = val
        self._emitter.anchor = node.next
        results = [node]
        if not isinstance(val, torch.Tensor):
            results = [_piece(self._emitter, node, index) for index in range(len(wanted))]
        for result, target in zip(results, wanted, strict=True):
            if result.meta["val"].shape != target.shape:
                refuse(node, f"the out tensor of shape {tuple(target.shape)} would be resized")
        return [self._as_content(node, result, alias) for result, alias in zip(results, aliases.values(), strict=True)]

    def beside(self, node: Node, aliases: dict[str, Alias]) -> list[Node]:
        """The contents of the arguments that an operator writes to beside returning its results.

        Args:
            node: The call, such as a batch normalization that updates its statistics; it becomes the call of the
                operator that returns the contents after its results.
            aliases: What the arguments look at, by schema name.

        Raises:
            PrepareError: If there is no such operator.
        """
        namespace, _, name = node.target._schema.name.partition("::")  # type: ignore[union-attr]
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
            only = _piece(self._emitter, node, 0)
            for user in users:
                user.replace_input_with(node, only)
        node.meta["val"] = (*results, *contents)
        first = len(results)
        return [_piece(self._emitter, node, first + index) for index in range(len(contents))]


def _piece(emitter: Emitter, node: Node, index: int) -> Node:
    return emitter.call(operator.getitem, (node, index), val=node.meta["val"][index], origin=node)


def _functional_overload(target: OpOverload) -> OpOverload | None:
    """The overload that takes the same arguments and returns its results."""
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
    """The dtype the functional operator returns, before the cast to the dtype of the tensor written to."""
    name = functional._schema.name.partition("::")[2]
    operands = [source.meta.get("val") for source in node.all_input_nodes]
    if name not in _PREDICATES and (
        name.startswith(_PLACING)
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
