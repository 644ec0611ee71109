"""Provenance of FX nodes: the module path and source location they come from."""

from __future__ import annotations

from pathlib import Path

import torch

__all__ = [
    "REGIONS_KEY",
    "VALUE_KEY",
    "copy_provenance",
    "innermost_frame",
    "module_path",
    "source_line",
    "without_own_frames",
]

REGIONS_KEY = "fxonnx_regions"
"""Key of ``Node.meta``: key and name of the calls of marked regions that enclose the node, outermost first."""
VALUE_KEY = "fxonnx_value"
"""Key of ``Node.meta``: name of the captured value that the node computes; see ``mark_captured_values``."""
_OWN_FRAME = f'File "{Path(__file__).parent / "_capture"}'
PROVENANCE_KEYS = ("nn_module_stack", "stack_trace", "torch_fn", "source_fn_stack", REGIONS_KEY)


def module_path(node: torch.fx.Node) -> str:
    """Return the FQN of the innermost module that encloses a node, ``encoder.layer.0``; "" for the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    innermost: tuple[str, object] = next(reversed(stack.values()), ("", None))
    return innermost[0].split("@")[0]


def source_line(node: torch.fx.Node) -> str:
    """Return the source location of a node, the innermost user frame: ``file.py:12`` or ``an unknown source line``."""
    return innermost_frame(node.meta.get("stack_trace") or "") or "an unknown source line"


def without_own_frames(stack_trace: str) -> str:
    """A stack trace without the functions of fxonnx that the model calls in place of torch's."""
    if _OWN_FRAME not in stack_trace:
        return stack_trace
    lines, is_own = [], False
    for line in stack_trace.splitlines():
        if line.lstrip().startswith('File "'):
            is_own = _OWN_FRAME in line
        if not is_own:
            lines.append(line)
    return "\n".join(lines)


def innermost_frame(stack_trace: str) -> str | None:
    """Return the innermost frame of a stack trace that is not in torch, as ``file.py:12``; None if it has no frames."""
    lines = [line.strip() for line in without_own_frames(stack_trace).splitlines()]
    frames = [line for line in lines if line.startswith("File ") and ", " in line]
    own = [frame for frame in frames if "site-packages/torch/" not in frame and not frame.startswith('File "torch/')]
    for frame in reversed(own or frames):
        file, line, *_ = frame.removeprefix("File ").split(", ")
        return f"{file.strip(chr(34))}:{line.removeprefix('line ')}"
    return None


def copy_provenance(target: torch.fx.Node, source: torch.fx.Node) -> None:
    """Copy the module path and stack trace of ``source`` to ``target``, which was created in its place."""
    for key in PROVENANCE_KEYS:
        if key in source.meta:
            target.meta[key] = source.meta[key]
