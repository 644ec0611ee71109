"""Where a node comes from in the user's model, as metadata_props."""

from __future__ import annotations

import torch

__all__ = ["node_metadata", "target_name"]


def target_name(node: torch.fx.Node) -> str:
    """The operator's name as users know it: ``aten.add.Tensor``."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return str(getattr(target, "__name__", target))


def node_metadata(node: torch.fx.Node) -> dict[str, str]:
    """The five fields that every ONNX node made for an FX node carries (keys as in torch.onnx)."""
    target = target_name(node)
    stack = node.meta.get("nn_module_stack", {})
    scopes, classes, path = [], [], []
    for name, module_class in stack.values():
        # torch keeps the class as a string; programs built by hand may hold the class itself.
        class_name = (
            module_class if isinstance(module_class, str) else f"{module_class.__module__}.{module_class.__qualname__}"
        )
        scope = name.split("@")[0]
        scopes.append(scope)
        classes.append(class_name)
        path.append(f"{scope}: {class_name}")
    path.append(f"{node.name}: {target}")
    return {
        "namespace": "/".join(path),
        "pkg.torch.onnx.class_hierarchy": repr([*classes, target]),
        "pkg.torch.onnx.name_scopes": repr([*scopes, node.name]),
        "pkg.torch.onnx.fx_node": str(node.format_node()),
        "pkg.torch.onnx.stack_trace": node.meta.get("stack_trace") or "",
    }
