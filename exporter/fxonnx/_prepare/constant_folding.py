"""Constant folding, evaluated with torch."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch

from fxonnx_translations._builder.sub_byte import contiguous
from fxonnx_translations._torch_compat import OpOverload

from .._nodes import function_of
from .graph_utils import STORAGE_DTYPES, find_attribute, store_attribute

__all__ = ["MAX_ELEMENTS", "fold_constants"]

aten = torch.ops.aten

MAX_ELEMENTS = 512 * 512
"""Maximum number of elements of a result that is larger than its inputs together."""


_IDENTITIES = frozenset(
    {
        aten.lift_fresh_copy.default,
        aten.lift_fresh.default,
        aten.lift.default,
        aten.detach.default,
        aten.clone.default,
        aten.alias.default,
    }
)

# A view with stride 0 uses no memory: results computed from it are compared with the size of its base.
_EXPANSIONS = frozenset({aten.expand.default, aten.expand_as.default, aten.broadcast_to.default})

# A uniform tensor is cheaper as an operator than as data in the file.
_UNIFORM = frozenset(
    {"zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}
)
_MAX_UNIFORM_ELEMENTS = 1024

# Operators that create a filled tensor like another one, with the fill value; None for their last argument.
_FILLED_LIKE: Mapping[Any, bool | int | float | None] = {
    aten.zeros_like.default: 0,
    aten.ones_like.default: 1,
    aten.full_like.default: None,
    aten.new_zeros.default: 0,
    aten.new_ones.default: 1,
    aten.new_full.default: None,
}

_UNINITIALIZED = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})


def fold_constants(
    gm: torch.fx.GraphModule, constants: Mapping[str, torch.Tensor], max_elements: int = MAX_ELEMENTS
) -> dict[str, torch.Tensor]:
    """Fold constants in place.

    A call is folded if it is deterministic, all its inputs are constants or folded, its result has a static shape, and
    the result has no more elements than ``max_elements`` or its inputs together. Quantization, widening of a storage
    dtype, expansions and large uniform tensors are not folded.

    Args:
        gm: A functional graph module; changed in place.
        constants: Values of placeholders that hold tensor constants, by placeholder name. Parameters and buffers do not
            belong here, since users can update them.
        max_elements: Maximum number of elements of a result that is larger than its inputs together.

    Returns:
        The values of the new ``get_attr`` nodes, by target. A folded node used by the rest of the graph becomes such a
        node; its target is the node's name, made unique in the module. The tensors are contiguous and not shared.
    """
    folder = _Folder(gm, constants, max_elements)
    if not folder.scan():
        return {}
    return folder.replace()


class _Folder:
    """The foldable nodes of a graph and their values."""

    def __init__(self, gm: torch.fx.GraphModule, constants: Mapping[str, torch.Tensor], max_elements: int) -> None:
        self._gm = gm
        self._constants = constants
        self._max_elements = max_elements
        # Foldable nodes with their number of elements in memory.
        self._foldable: dict[torch.fx.Node, int] = {}
        self._leaves: dict[torch.fx.Node, torch.Tensor] = {}
        self._values: dict[torch.fx.Node, Any] = {}

    def scan(self) -> bool:
        """Find the foldable nodes; return whether there are any."""
        foldable, leaves = self._foldable, self._leaves
        for node in self._gm.graph.nodes:
            if node.op == "call_function":
                if node.target in _FILLED_LIKE:
                    _rewrite_to_full(node)
                inputs = node.all_input_nodes
                if all(source in foldable or source in leaves for source in inputs):
                    self._consider(node, inputs)
            elif node.op == "placeholder":
                value = self._constants.get(node.name)
                if value is not None and _is_real(value):
                    leaves[node] = value
            elif node.op == "get_attr":
                value = find_attribute(self._gm, str(node.target))
                if isinstance(value, torch.Tensor) and _is_real(value):
                    leaves[node] = value
        return bool(foldable)

    def _consider(self, node: torch.fx.Node, inputs: list[torch.fx.Node]) -> None:
        val = node.meta.get("val")
        if node.target is operator.getitem:
            if isinstance(val, torch.Tensor) and isinstance(node.args[1], int):
                self._foldable[node] = math.prod(val.shape)
            return
        results = val if isinstance(val, (list, tuple)) else (val,)
        if not _is_deterministic(node.target) or not all(map(_is_static, results)):
            return
        if node.target is not aten.view.dtype and any(_widens(source.meta.get("val"), results) for source in inputs):
            return
        available = sum(
            self._leaves[source].numel() if source in self._leaves else self._foldable[source] for source in inputs
        )
        if node.target in _EXPANSIONS:
            self._foldable[node] = available
            return
        elements = sum(result.numel() for result in results)
        if elements <= max(self._max_elements, available):
            self._foldable[node] = elements

    def replace(self) -> dict[str, torch.Tensor]:
        """Fold the nodes used by the rest of the graph; return the new constants."""
        self._skip_copies()
        boundary = self._boundary()
        while not self._evaluate(boundary):
            boundary = self._boundary()
        made = {}
        for node in boundary:
            # Values that are views of constants must not share memory with the user's tensors.
            value = contiguous(self._values[node].detach(), copy=True)
            name = store_attribute(self._gm, node.name, value)
            node.args, node.kwargs = (), {}
            node.op, node.target = "get_attr", name
            made[name] = value
        kept = set(boundary)
        for node in reversed(self._foldable):
            if not node.users and node not in kept:
                node.graph.erase_node(node)
        return made

    def _skip_copies(self) -> None:
        """Replace copies of constants by the constants, since a functional graph writes to neither."""
        for node in list(self._foldable):
            if node.target in _IDENTITIES and set(node.kwargs) <= {"memory_format"}:
                source = node.args[0]
                if isinstance(source, torch.fx.Node) and source in self._leaves:
                    node.replace_all_uses_with(source)
                    node.graph.erase_node(node)
                    del self._foldable[node]

    def _boundary(self) -> list[torch.fx.Node]:
        """The foldable nodes used by nodes that are not folded, in graph order."""
        needed: dict[torch.fx.Node, None] = {}
        # Foldable nodes that are cheaper as operators.
        not_folded: set[torch.fx.Node] = set()
        for node in reversed(self._foldable):
            if any(user not in self._foldable or user in not_folded for user in node.users):
                if _is_worth_storing(node):
                    needed[node] = None
                else:
                    not_folded.add(node)
        return list(reversed(needed))

    def _evaluate(self, boundary: list[torch.fx.Node]) -> bool:
        """Compute the values of nodes; False if torch failed for some, which are then no longer foldable."""
        complete = True
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for node in boundary:
                complete = self._compute(node) and complete
        return complete

    def _compute(self, root: torch.fx.Node) -> bool:
        pending = [root]
        while pending:
            node = pending[-1]
            missing = [
                source for source in node.all_input_nodes if source not in self._values and source not in self._leaves
            ]
            if any(source not in self._foldable for source in missing):
                del self._foldable[root]
                return False
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            if node not in self._values and not self._call(node):
                self._foldable.pop(node)
                self._foldable.pop(root, None)
                return False
        return True

    def _call(self, node: torch.fx.Node) -> bool:
        def value(source: torch.fx.Node) -> Any:
            return self._leaves[source] if source in self._leaves else self._values[source]

        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value)
        try:
            result = function_of(node)(*args, **kwargs)
        except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError):
            # Either the model itself fails here or this build of torch lacks the kernel: the operator is not folded.
            return False
        if not _matches(node.meta["val"], result):
            return False
        self._values[node] = result
        return True


def _rewrite_to_full(node: torch.fx.Node) -> None:
    """Rewrite ``zeros_like``, ``new_full`` and so on to ``full`` if the shape is static: they use no values."""
    val = node.meta["val"]
    fill: Any = _FILLED_LIKE[node.target]
    if fill is None:
        fill = node.args[-1] if len(node.args) > 1 else node.kwargs.get("fill_value")
    if not _is_static(val) or not isinstance(fill, (bool, int, float)):
        return
    node.target = aten.full.default
    node.args, node.kwargs = (list(val.shape), fill), {"dtype": val.dtype, "device": val.device}


def _is_real(value: torch.Tensor) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and value.device.type != "meta"


def _is_deterministic(target: Any) -> bool:
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    name = target._opname
    return not (
        torch.Tag.nondeterministic_seeded in target.tags
        or target._schema.is_mutable
        or name in _UNINITIALIZED
        or "quantize" in name
    )


def _is_worth_storing(node: torch.fx.Node) -> bool:
    """Whether a foldable node is cheaper as data than as an operator."""
    val = node.meta["val"]
    if not isinstance(val, torch.Tensor) or node.target in _EXPANSIONS:
        return False
    return getattr(node.target, "_opname", "") not in _UNIFORM or val.numel() <= _MAX_UNIFORM_ELEMENTS


def _is_static(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and all(type(size) is int for size in value.shape)


def _widens(source: Any, results: Any) -> bool:
    """Whether a call converts a tensor in a storage dtype to another floating-point dtype."""
    if isinstance(source, (list, tuple)):
        return any(_widens(item, results) for item in source)
    if not isinstance(source, torch.Tensor) or source.dtype not in STORAGE_DTYPES:
        return False
    return any(result.dtype != source.dtype and result.dtype.is_floating_point for result in results)


def _matches(expected: Any, found: Any) -> bool:
    if isinstance(expected, (list, tuple)):
        return isinstance(found, (list, tuple)) and all(map(_matches, expected, found))
    return isinstance(found, torch.Tensor) and found.dtype == expected.dtype and found.shape == expected.shape
