"""The graph as it is on the CPU: ONNX has no devices, and constants are computed on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.node import map_aggregate

from fxonnx_translations._torch_compat import FakeTensor, pytree

from .graph_utils import find_attribute, store_attribute, subgraphs_of

__all__ = ["move_to_cpu"]

_CPU = torch.device("cpu")


def move_to_cpu(owner: torch.fx.GraphModule) -> None:
    """Replace the devices of all nodes, of their values and of the tensors of the graph and its subgraphs by the CPU.

    A graph on the CPU or the meta device is not changed. Values share the storages of the replaced ones.

    Args:
        owner: The module of a copied graph, whose subgraphs are copies too.
    """
    if any(map(_is_elsewhere, owner.graph.nodes)):
        _move(owner, {})
    for _, body in subgraphs_of(owner):
        move_to_cpu(body)


def _is_elsewhere(node: torch.fx.Node) -> bool:
    values = (*node.args, *node.kwargs.values(), node.meta.get("val"))
    return any(
        _is_other(value.device if isinstance(value, torch.Tensor) else value)
        for value in values
        if isinstance(value, torch.device | torch.Tensor)
    )


def _is_other(device: torch.device) -> bool:
    return device.type not in ("cpu", "meta")


def _move(owner: torch.fx.GraphModule, moved: dict[int, torch.Tensor]) -> None:
    def on_cpu(value: Any) -> Any:
        return _CPU if isinstance(value, torch.device) and _is_other(value) else value

    for node in owner.graph.nodes:
        node.args, node.kwargs = map_aggregate(node.args, on_cpu), map_aggregate(node.kwargs, on_cpu)
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map_only(FakeTensor, lambda val: _value(val, moved), node.meta["val"])
        if node.op == "get_attr":
            value = find_attribute(owner, str(node.target))
            if isinstance(value, torch.Tensor) and _is_other(value.device):
                node.target = store_attribute(owner, str(node.target).replace(".", "_"), value.detach().cpu())


def _value(val: FakeTensor, moved: dict[int, torch.Tensor]) -> torch.Tensor:
    if not _is_other(val.device):
        return val
    found = moved.get(id(val))
    if found is None:
        # An alias, since the analysis of mutations compares storages; the program keeps the value that it has.
        with torch.no_grad(), val.fake_mode:
            alias: Any = torch.ops.aten.alias.default(val)
        alias.fake_device = _CPU
        found = moved[id(val)] = alias
    return found
