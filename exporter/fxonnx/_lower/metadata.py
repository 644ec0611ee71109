"""Provenance of nodes as ``metadata_props``: module scope, FX node, stack trace."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import onnx_ir as ir
import torch

from fxonnx_translations._torch_compat import OpOverload

from .._provenance import VALUE_KEY, without_own_frames

__all__ = [
    "CUSTOM_KEY",
    "FX_VALUE_KEY",
    "LEVELS",
    "PROVENANCE_KEYS",
    "SCOPE",
    "TRACE_KEYS",
    "MetadataLevel",
    "NodeMetadata",
    "call_metadata",
    "class_scopes_of",
    "relative_file",
    "scopes_of",
    "target_name",
]

MetadataLevel: TypeAlias = Literal["full", "names", "none"]
LEVELS: tuple[MetadataLevel, ...] = ("none", "names", "full")
"""The levels, each with the metadata of those before it."""

CUSTOM_KEY = "pkg.fxonnx.custom"
"""Metadata key of a node: JSON of its ``torch.fx.traceback.annotate`` annotations."""

FX_VALUE_KEY = "pkg.fxonnx.fx_value"
"""Metadata key of a value: name of the captured FX node whose value it is; in subgraphs after their path and a dot."""

SCOPE = "fxonnx.scope"
"""Key of ``ir.Node.meta``: FQNs of the enclosing modules, outermost first."""

_FILE = re.compile(r'File "([^"]+)"')
_FRAME = re.compile(r'(?=^ *File ")', re.MULTILINE)
_NAMESPACE = "namespace"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_SCOPES = "pkg.torch.onnx.name_scopes"
_TRACE = "pkg.torch.onnx.stack_trace"
_FX_NODE = "pkg.torch.onnx.fx_node"

TRACE_KEYS = frozenset({_FX_NODE, _TRACE})
"""Metadata keys of level "full" only."""

PROVENANCE_KEYS = TRACE_KEYS | {_NAMESPACE, _CLASSES, _SCOPES, CUSTOM_KEY, FX_VALUE_KEY}
"""Metadata keys of the levels "full" and "names"."""


def target_name(node: torch.fx.Node) -> str:
    """The operator's user-facing name: ``aten.add.Tensor``."""
    target = node.target
    if isinstance(target, OpOverload):
        return str(target)
    return str(getattr(target, "__name__", target))


def scopes_of(node: torch.fx.Node) -> list[str]:
    """FQNs of the modules that enclose a node, outermost first: ``['', 'features', 'features.0']``."""
    return [name.split("@")[0] for name, _ in node.meta.get("nn_module_stack", {}).values()]


def class_scopes_of(node: torch.fx.Node) -> list[tuple[str, str]]:
    """FQN, with a suffix ``@n`` for further calls, and class of the modules that enclose a node, outermost first."""
    return [
        # torch stores the class as a string; hand-built programs may hold the class itself.
        (
            name.split("@")[0] + "".join(key.rpartition("@")[1:] if "@" in key else ()),
            cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}",
        )
        for key, (name, cls) in node.meta.get("nn_module_stack", {}).items()
    ]


def _names(scopes: Sequence[tuple[str, str]], name: str, target: str) -> dict[str, str]:
    """The metadata of a node with module and operator names."""
    paths = [scope.split("@")[0] for scope, _ in scopes]
    classes = [class_name for _, class_name in scopes]
    path = [*(f"{scope}: {class_name}" for scope, class_name in zip(paths, classes, strict=True)), f"{name}: {target}"]
    return {_NAMESPACE: "/".join(path), _CLASSES: repr([*classes, target]), _SCOPES: repr([*paths, name])}


def call_metadata(
    scopes: Sequence[tuple[str, str]], name: str, target: str, nodes: Sequence[Mapping[str, str]]
) -> dict[str, str]:
    """The metadata of a call of a function, as detailed as in the nodes that it replaces.

    Args:
        scopes: Key and class of the enclosing modules, outermost first.
        name: Name of the call.
        target: Name of the function.
        nodes: The metadata of the replaced nodes.
    """
    traces = [_FRAME.split(metadata[_TRACE].strip()) for metadata in nodes if _TRACE in metadata]
    named = any(_NAMESPACE in metadata for metadata in nodes)
    found = _names(scopes, name, target) if named else {}
    if traces:
        shared = itertools.takewhile(lambda frames: len(set(frames)) == 1, zip(*traces, strict=False))
        found[_TRACE] = "".join(frames[0] for frames in shared).strip()
    return found


class NodeMetadata:
    """Provenance metadata of nodes.

    Args:
        level: "full" for all keys of torch.onnx, "names" for those with module and operator names, or "none".
    """

    def __init__(self, level: MetadataLevel) -> None:
        self._level = level
        self._files: dict[str, str] = {}
        self._traces: dict[str, str] = {}

    def of(self, node: torch.fx.Node) -> dict[str, str]:
        """The metadata for every ONNX node emitted for an FX node."""
        if self._level == "none":
            return {}
        target = target_name(node)
        metadata = _names(class_scopes_of(node), node.name, target)
        if self._level == "full":
            metadata[_FX_NODE] = str(node.format_node())
            metadata[_TRACE] = self._trace(node.meta.get("stack_trace") or "")
        custom = {key: value for key, value in node.meta.get("custom", {}).items() if not key.startswith("_torch")}
        if custom:
            metadata[CUSTOM_KEY] = json.dumps(custom, default=str)
        return metadata

    def annotate_value(self, value: ir.Value, node: torch.fx.Node) -> None:
        """Add the metadata of a value that stands for the result of an FX node; without metadata, in memory only."""
        captured = node.meta.get(VALUE_KEY)
        if captured is not None:
            target = value.meta if self._level == "none" else value.metadata_props
            target[FX_VALUE_KEY] = captured

    def _trace(self, text: str) -> str:
        """A stack trace with relative paths, so that the model does not depend on the exporting machine."""
        found = self._traces.get(text)
        if found is None:
            shown = without_own_frames(text)
            found = self._traces[text] = _FILE.sub(lambda match: f'File "{self._file(match[1])}"', shown)
        return found

    def _file(self, name: str) -> str:
        found = self._files.get(name)
        if found is None:
            found = self._files[name] = relative_file(name)
        return found


def relative_file(name: str) -> str:
    """The path of a source file relative to the innermost import root or working directory that contains it."""
    if not os.path.isabs(name):
        return name
    # The innermost root: a virtual environment may be inside the working directory.
    roots = [os.path.abspath(root) for root in [*sys.path, os.getcwd()]]
    within = [root for root in roots if name.startswith(root.rstrip(os.sep) + os.sep)]
    root = max(within, key=len, default=os.path.dirname(name))
    return os.path.relpath(name, root).replace(os.sep, "/")
