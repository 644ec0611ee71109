"""Where an FX node comes from in the user's model."""

from __future__ import annotations

import torch

__all__ = ["copy_origin", "source_line"]

ORIGIN_KEYS = ("nn_module_stack", "stack_trace", "torch_fn", "source_fn_stack")


def source_line(node: torch.fx.Node) -> str:
    """``file.py:12`` of the innermost line of the user's code a node comes from, or ``an unknown source line``."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()]
    frames = [line for line in lines if line.startswith("File ")]
    own = [frame for frame in frames if "site-packages/torch/" not in frame]
    for frame in reversed(own or frames):
        file, line, *_ = frame.removeprefix("File ").split(", ")
        return f"{file.strip(chr(34))}:{line.removeprefix('line ')}"
    return "an unknown source line"


def copy_origin(target: torch.fx.Node, source: torch.fx.Node) -> None:
    """Gives a new node the module path and the source line of the node it was made for."""
    for key in ORIGIN_KEYS:
        if key in source.meta:
            target.meta[key] = source.meta[key]
