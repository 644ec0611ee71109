"""The passes in their order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from .._export_signature import InputRecord, Signature, read_signature
from ..errors import PrepareError
from .batch_norm_statistics import reveal_statistics
from .common_subexpressions import share
from .constant_folding import fold
from .decompose import decompose
from .functionalize import Mutation, functionalize
from .graph_utils import drop_dead, find_attribute
from .identity_elimination import drop_noops
from .inline import inline
from .patterns import apply_patterns
from .weight_folding import Derived, derive_weights, fold_batch_norm

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """A functional graph and what belongs to it.

    Attributes:
        exported_program: Where it came from; unchanged.
        graph: The prepared graph; its placeholders are those of the signature.
        signature: Inputs and outputs.
        constants: Tensors of the graph's ``get_attr`` nodes.
        derived: Nodes that are computed from weights only, with their recipes.
        mutations: Which placeholders end with another value, which the graph returns behind the program's outputs.
        undecomposed: Nodes that have neither a translation nor a decomposition.
        patterns: Name of each rule about operators that are written out to how often it was applied.
    """

    exported_program: torch.export.ExportedProgram
    graph: torch.fx.Graph
    signature: Signature
    constants: Mapping[str, torch.Tensor]
    derived: Mapping[torch.fx.Node, Derived]
    mutations: tuple[Mutation, ...] = ()
    undecomposed: tuple[torch.fx.Node, ...] = field(default=())
    patterns: Mapping[str, int] = field(default_factory=dict)

    def tensor(self, record: InputRecord) -> torch.Tensor:
        """The tensor behind a parameter, buffer or constant of the signature."""
        return _tensor(self.exported_program, record)


def _tensor(exported_program: torch.export.ExportedProgram, record: InputRecord) -> torch.Tensor:
    target = str(record.target)
    found = exported_program.state_dict.get(target, exported_program.constants.get(target))
    if not isinstance(found, torch.Tensor):
        raise PrepareError(f"the {record.kind.name.lower()} {target!r} of the program is no tensor")
    return found


def prepare(
    exported_program: torch.export.ExportedProgram,
    is_translated: Callable[[torch.fx.Node], bool],
    *,
    optimize: bool = True,
    fold_weights: bool = True,
    fold_norms: bool = True,
    rules: Collection[str] = (),
) -> Prepared:
    """Runs all passes on a copy of the captured graph.

    Args:
        exported_program: The captured program; not changed.
        is_translated: Whether a node can be translated as it is; others are decomposed.
        optimize: Whether equal computations are shared, patterns recognized and batch norms folded.
        fold_weights: Whether weights that are computed from weights are initializers, not nodes.
        fold_norms: Whether batch norms may be folded, with ``optimize`` and ``fold_weights``.
        rules: Names of the rules about operators that are written out, to be applied with ``optimize``.
    """
    signature = read_signature(exported_program)
    module = _copy(exported_program)
    graph = module.graph
    inline(module)
    _own_bodies(module)
    reveal_statistics(graph)
    mutations = functionalize(graph)
    # While the passes exchange nodes, the final values are kept as outputs behind the program's own.
    output: Any = graph.output_node()
    own = len(output.args[0])
    output.args = ((*output.args[0], *(mutation.value for mutation in mutations)),)
    undecomposed = decompose(module, is_translated)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    records = dict(zip(placeholders, signature.inputs, strict=True))
    mutated = {mutation.target for mutation in mutations}
    lifted = {
        node.name: _tensor(exported_program, record)
        for node, record in records.items()
        if record.kind == InputKind.CONSTANT_TENSOR and node.name not in mutated
    }
    patterns: Mapping[str, int] = {}
    if optimize:
        drop_noops(graph)
        share(graph, lifted)
        patterns = apply_patterns(graph, rules)
    constants = dict(fold(module, lifted))
    weights = {node for node, record in records.items() if record.is_weight and node.name not in mutated}
    if optimize and fold_weights and fold_norms:
        fold_batch_norm(graph, weights)
    derived = derive_weights(graph, weights, constants) if fold_weights else {}
    _drop_dead(graph, keep=derived)
    for node in graph.nodes:
        if node.op == "get_attr" and node.target not in constants:
            attribute = find_attribute(module, str(node.target))
            if isinstance(attribute, torch.Tensor):
                constants[str(node.target)] = attribute
    returned = output.args[0][own:]
    # The copied graph renames placeholders that hide a builtin: a parameter ``input`` is its ``input_1``.
    names = {node.name: record.name for node, record in records.items()}
    finals = tuple(
        replace(mutation, target=names[mutation.target], value=value)
        for mutation, value in zip(mutations, returned, strict=True)
    )
    return Prepared(exported_program, graph, signature, constants, derived, finals, tuple(undecomposed), patterns)


class _Workspace(torch.fx.GraphModule):
    """A graph with the submodules and attributes its nodes refer to; it is rewritten, never run."""

    def recompile(self) -> torch.fx.graph.PythonCode:
        """Skips generating Python code for the graph, which takes longer than most passes."""
        return torch.fx.graph.PythonCode("", {}, None)


def _copy(exported_program: torch.export.ExportedProgram) -> torch.fx.GraphModule:
    """A graph of our own over the program's submodules and attributes."""
    graph = torch.fx.Graph()
    output = graph.graph_copy(exported_program.graph, {}, return_output_node=True)
    if isinstance(output, tuple):
        value, node = output
        graph.output(value).meta.update(node.meta)
    return _Workspace(exported_program.graph_module, graph)


def _own_bodies(owner: torch.fx.GraphModule) -> None:
    """Copies the bodies of operators such as cond: the passes rewrite them, too."""
    for node in owner.graph.find_nodes(op="get_attr"):
        body = find_attribute(owner, str(node.target))
        if isinstance(body, torch.fx.GraphModule):
            graph = torch.fx.Graph()
            graph.output(graph.graph_copy(body.graph, {}))
            copy = _Workspace(body, graph)
            _own_bodies(copy)
            node.target = str(node.target).replace(".", "_")
            setattr(owner, node.target, copy)


def _drop_dead(graph: torch.fx.Graph, keep: Mapping[torch.fx.Node, Derived]) -> None:
    """Erases what no output depends on; a derived node's own inputs are needed by its recipe only."""
    for node in keep:
        node.args, node.kwargs = (), {}
    drop_dead(graph)
