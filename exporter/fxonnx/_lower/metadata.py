"""Provenance of nodes as ``metadata_props``: module scope, FX node, stack trace."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Literal, TypeAlias

import torch

from fxonnx_translations._torch_compat import OpOverload

__all__ = ["CUSTOM_KEY", "MetadataLevel", "NodeMetadata", "relative_file", "scopes_of", "target_name"]

MetadataLevel: TypeAlias = Literal["full", "names", "none"]
CUSTOM_KEY = "pkg.fxonnx.custom"
"""Metadata key of a node: JSON of its ``torch.fx.traceback.annotate`` annotations."""

_FILE = re.compile(r'File "([^"]+)"')


def target_name(node: torch.fx.Node) -> str:
    """The operator's user-facing name: ``aten.add.Tensor``."""
    target = node.target
    if isinstance(target, OpOverload):
        return str(target)
    return str(getattr(target, "__name__", target))


def scopes_of(node: torch.fx.Node) -> list[str]:
    """FQNs of the modules that enclose a node, outermost first: ``['', 'features', 'features.0']``."""
    return [name.split("@")[0] for name, _ in node.meta.get("nn_module_stack", {}).values()]


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
        stack = node.meta.get("nn_module_stack", {})
        scopes, classes, path = [], [], []
        for name, module_class in stack.values():
            # torch stores the class as a string; hand-built programs may hold the class itself.
            class_name = (
                module_class
                if isinstance(module_class, str)
                else f"{module_class.__module__}.{module_class.__qualname__}"
            )
            scope = name.split("@")[0]
            scopes.append(scope)
            classes.append(class_name)
            path.append(f"{scope}: {class_name}")
        path.append(f"{node.name}: {target}")
        metadata = {
            "namespace": "/".join(path),
            "pkg.torch.onnx.class_hierarchy": repr([*classes, target]),
            "pkg.torch.onnx.name_scopes": repr([*scopes, node.name]),
        }
        if self._level == "full":
            metadata["pkg.torch.onnx.fx_node"] = str(node.format_node())
            metadata["pkg.torch.onnx.stack_trace"] = self._trace(node.meta.get("stack_trace") or "")
        custom = {key: value for key, value in node.meta.get("custom", {}).items() if not key.startswith("_torch")}
        if custom:
            metadata[CUSTOM_KEY] = json.dumps(custom, default=str)
        return metadata

    def _trace(self, text: str) -> str:
        """A stack trace with relative paths, so that the model does not depend on the exporting machine."""
        found = self._traces.get(text)
        if found is None:
            found = self._traces[text] = _FILE.sub(lambda match: f'File "{self._file(match[1])}"', text)
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
