"""Names of the values of the captured program, which the passes keep, so that ONNX values can be compared with them."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.fx.node import map_arg

from fxonnx_translations._torch_compat import OpOverload

from .._provenance import VALUE_KEY
from .graph_utils import fake_mode_of, subgraphs_of
from .inline import inline_subgraphs

__all__ = ["Workspace", "copy_program", "mark_captured_values", "mark_replacements", "runnable_program"]

_TRACED_ROOT = "_export_root."


class Workspace(torch.fx.GraphModule):
    """A graph module that is rewritten but never run, so that it needs no generated code.

    Attributes:
        replacements: Name of each node that has replaced all uses of another one to the name of the captured value.
    """

    def __init__(self, root: torch.nn.Module, graph: torch.fx.Graph) -> None:
        super().__init__(root, graph)
        self.replacements: dict[str, str] = {}
        self._register_replace_node_hook(self._record_replacement)

    def recompile(self) -> torch.fx.graph.PythonCode:
        """Skip the generation of Python code, which takes longer than most passes."""
        return torch.fx.graph.PythonCode("", {}, None)

    def _record_replacement(self, old: torch.fx.Node, new: str, user: torch.fx.Node) -> None:
        origin = old.meta.get(VALUE_KEY) or self.replacements.get(old.name)
        if origin is not None:
            self.replacements.setdefault(new, origin)


def copy_program(exported_program: torch.export.ExportedProgram) -> Workspace:
    """Copy the program's graph into a module that shares the program's submodules and attributes."""
    graph = torch.fx.Graph()
    output = graph.graph_copy(exported_program.graph, {}, return_output_node=True)
    if isinstance(output, tuple):
        value, node = output
        graph.output(value).meta.update(node.meta)
    _complete_values(graph)
    return Workspace(exported_program.graph_module, graph)


def _complete_values(graph: torch.fx.Graph) -> None:
    """Compute the fake values of operator calls without one, which a user's pass over the program has inserted."""
    missing = [node for node in graph.nodes if node.op == "call_function" and "val" not in node.meta]
    mode = fake_mode_of(node.meta.get("val") for node in graph.nodes) if missing else None
    if mode is None:
        return
    for node in missing:
        args, kwargs = map_arg((node.args, node.kwargs), lambda argument: argument.meta.get("val"))
        if isinstance(node.target, OpOverload) or node.target is operator.getitem:
            with mode, mode.shape_env.ignore_fresh_unbacked_symbols() if mode.shape_env else nullcontext():
                node.meta["val"] = node.target(*args, **kwargs)


def mark_captured_values(module: torch.fx.GraphModule, path: str = "", scopes: Any = None) -> None:
    """Name the values of a graph and of its subgraphs, after regions were inlined: ``add``, ``true_graph_0.add``.

    Args:
        module: The module that has the graph.
        path: Prefix of the names.
        scopes: For a subgraph, the ``nn_module_stack`` of its operator: nodes without one belong to the same module.
    """
    for node, body in subgraphs_of(module):
        call = next(iter(node.users), node)
        mark_captured_values(body, f"{path}{node.target}.", call.meta.get("nn_module_stack") or scopes)
    for node in module.graph.nodes:
        if node.op == "call_function":
            node.meta[VALUE_KEY] = f"{path}{node.name}"
            if scopes:
                node.meta["nn_module_stack"] = _within(scopes, node.meta.get("nn_module_stack") or {})


def _within(scopes: Mapping[str, tuple[str, Any]], own: Mapping[str, tuple[str, Any]]) -> dict[str, tuple[str, Any]]:
    """The modules of a node of a subgraph. TorchDynamo, which traces it, begins their paths with a root of its own."""
    modules = dict(scopes)
    for key, (path, cls) in own.items():
        modules[key.removeprefix(_TRACED_ROOT)] = (path.removeprefix(_TRACED_ROOT), cls)
    return modules


def mark_replacements(module: torch.fx.GraphModule) -> None:
    """Name the nodes that passes have inserted in place of captured ones, in the graph and its subgraphs."""
    replacements = module.replacements if isinstance(module, Workspace) else {}
    for _, body in subgraphs_of(module):
        mark_replacements(body)
    for node in module.graph.nodes:
        if node.op != "get_attr" and VALUE_KEY not in node.meta and node.name in replacements:
            node.meta[VALUE_KEY] = replacements[node.name]


def runnable_program(exported_program: torch.export.ExportedProgram) -> torch.fx.GraphModule:
    """Copy a program for ``torch.fx.Interpreter``: with inlined regions and marked values, otherwise as captured."""
    module = copy_program(exported_program)
    inline_subgraphs(module)
    mark_captured_values(module)
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule) and part is not module:
            part.recompile()
    return module
