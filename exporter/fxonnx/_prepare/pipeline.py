"""The pass pipeline over the captured FX graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from fxonnx_translations._builder.initializers import has_content
from fxonnx_translations._torch_compat import FakeTensor, OpOverload

from .._capture.data_dependence.weight_reads import WeightReads
from .._export_signature import InputRecord, Signature, read_signature
from .._extensions import PassContext, extensions_of_graph, run_graph_passes
from .._inner_tensors import has_wrapped_weights
from ..errors import PrepareError
from .adapters import find_adapters
from .assumption_checks import Check, insert_checks, replaced_check
from .captured_values import Workspace, copy_program, mark_captured_values, mark_replacements
from .constant_folding import fold_constants
from .decompose import decompose
from .devices import move_to_cpu
from .functionalize import Mutation, functionalize
from .fusions import FusionRecord, record_fusions
from .graph_utils import eliminate_dead_code, find_attribute, subgraphs_of
from .inline import inline_subgraphs
from .patterns import PatternContext, apply_patterns
from .redundant_nodes import eliminate_common_subexpressions, eliminate_identities
from .sparse_tensors import is_sparse, make_dense
from .storage_views import rebase_storage_views
from .training_nodes import expose_running_statistics, replace_disabled_observers
from .weight_folding import DerivedWeight, find_derived_weights, fold_batch_norm

__all__ = ["Prepared", "has_operators", "least_default_opset", "least_opset_of_program", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """The functional graph after all passes, with its constants, derived weights and mutations.

    Attributes:
        exported_program: The captured program, unchanged.
        graph: The functional graph; its placeholders are the signature's.
        signature: Inputs and outputs of the program.
        constants: Tensors of the graph's ``get_attr`` nodes.
        derived: Nodes computed from weights only, with their recipes.
        mutations: Mutated placeholders, whose final values the graph returns after the program's outputs.
        undecomposed: Nodes that have neither a translation nor a decomposition.
        fusions: The matches and near misses of the applied fusion patterns.
        checks: The conditions of the answers that follow the example, which the graph returns at its end.
        adapters: Names of the placeholders of weights that become graph inputs with default values.
    """

    exported_program: torch.export.ExportedProgram
    graph: torch.fx.Graph
    signature: Signature
    constants: Mapping[str, torch.Tensor]
    derived: Mapping[torch.fx.Node, DerivedWeight]
    mutations: tuple[Mutation, ...] = ()
    undecomposed: tuple[torch.fx.Node, ...] = field(default=())
    fusions: FusionRecord = field(default_factory=FusionRecord)
    checks: tuple[Check, ...] = ()
    adapters: frozenset[str] = frozenset()

    def tensor(self, record: InputRecord) -> torch.Tensor:
        """The tensor of a parameter, buffer or constant of the signature."""
        return _tensor(self.exported_program, record)


def _tensor(exported_program: torch.export.ExportedProgram, record: InputRecord) -> torch.Tensor:
    target = str(record.target)
    found = exported_program.state_dict.get(target, exported_program.constants.get(target))
    if not isinstance(found, torch.Tensor):
        raise PrepareError(f"the {record.kind.name.lower()} {target!r} of the program is not a tensor")
    return found


def prepare(
    exported_program: torch.export.ExportedProgram,
    is_translated: Callable[[torch.fx.Node], bool],
    *,
    optimize: bool = True,
    fold_weights: bool = True,
    fold_norms: bool = True,
    patterns: Collection[str] = (),
    adapters: Collection[str] = (),
    weight_reads: WeightReads | None = None,
    pattern_context: Callable[[], PatternContext] = PatternContext,
    checked: bool = False,
) -> Prepared:
    """Run all passes on a copy of the captured graph.

    Args:
        exported_program: The captured program; not changed.
        is_translated: Whether a node has a translation; other nodes are decomposed.
        optimize: Whether to run CSE, identity elimination, fusion patterns and batch norm folding.
        fold_weights: Whether tensors computed from weights only become derived weights, stored as initializers.
        fold_norms: Whether to fold batch norms into weights; requires ``optimize`` and ``fold_weights``.
        patterns: Names of the fusion patterns to apply with ``optimize``.
        adapters: Names or patterns of the weights that become graph inputs with default values.
        weight_reads: The values that Python read from weights; None without any.
        pattern_context: Collects the facts that some of them read.
        checked: Whether the graph computes the conditions of the assertions of the program.
    """
    signature = read_signature(exported_program)
    adapter_weights = find_adapters(exported_program, signature, adapters, weight_reads)
    module = copy_program(exported_program)
    graph = module.graph
    checks = insert_checks(graph) if checked else []
    inline_subgraphs(module)
    mark_captured_values(module)
    _copy_subgraphs(module)
    _move_and_make_dense(module, exported_program, signature)
    expose_running_statistics(graph)
    replace_disabled_observers(graph, partial(_tensor_of, exported_program, _records(graph, signature)))
    rebase_storage_views(graph, is_translated)
    mutations = functionalize(graph, [one.name for one in signature.inputs if one.kind != InputKind.USER_INPUT])
    # Kept as additional outputs after the program's own, so that the passes track the final values of mutated tensors.
    output: Any = graph.output_node()
    output_count = len(output.args[0])
    output.args = ((*output.args[0], *(mutation.value for mutation in mutations), *(check.node for check in checks)),)
    undecomposed = decompose(module, is_translated)
    records = _records(graph, signature)
    mutated = {mutation.target for mutation in mutations}
    # torch lifts an intermediate fake tensor of some vmaps as a constant, which no node uses.
    lifted = {
        node.name: tensor.cpu()
        for node, record in records.items()
        if record.kind == InputKind.CONSTANT_TENSOR and node.name not in mutated
        if not isinstance(tensor := _tensor(exported_program, record), FakeTensor) and not is_sparse(tensor)
    }
    fusions = FusionRecord()
    if optimize:
        eliminate_identities(graph)
        eliminate_common_subexpressions(graph, lifted)
        found = record_fusions(apply_patterns(graph, patterns, pattern_context))
        fusions = found.joined(_optimize_subgraphs(module, patterns, pattern_context))
    constants = dict(fold_constants(module, lifted))
    weights = {
        node
        for node, record in records.items()
        if record.is_weight and node.name not in mutated and record.name not in adapter_weights
    }
    if optimize and fold_weights and fold_norms:
        fold_batch_norm(graph, weights)
    if optimize and fold_weights:
        value_of = partial(_tensor_of, exported_program, records)
        run_graph_passes(PassContext(module, weights, constants, lifted, value_of))
    derived = find_derived_weights(graph, weights, constants) if fold_weights else {}
    _eliminate_dead_code(graph, keep=derived)
    mark_replacements(module)
    constants |= _tensor_attributes(module, constants)
    final_values = output.args[0][output_count:]
    # Copying a graph renames placeholders that shadow a builtin: ``input`` becomes ``input_1``.
    names = {node.name: record.name for node, record in records.items()}
    final_mutations = tuple(
        replace(mutation, target=names[mutation.target], value=value)
        for mutation, value in zip(mutations, final_values, strict=False)
    )
    return Prepared(
        exported_program,
        graph,
        signature,
        constants,
        derived,
        final_mutations,
        tuple(undecomposed),
        fusions,
        tuple(map(replaced_check, checks, final_values[len(mutations) :])),
        adapter_weights,
    )


def _tensor_attributes(module: torch.fx.GraphModule, known: Collection[str]) -> dict[str, torch.Tensor]:
    """The tensors of the remaining ``get_attr`` nodes, by target."""
    targets = (str(node.target) for node in module.graph.find_nodes(op="get_attr"))
    found = {target: find_attribute(module, target) for target in targets if target not in known}
    return {target: value for target, value in found.items() if isinstance(value, torch.Tensor)}


def _records(graph: torch.fx.Graph, signature: Signature) -> dict[torch.fx.Node, InputRecord]:
    placeholders = graph.find_nodes(op="placeholder")
    return dict(zip(placeholders, signature.inputs, strict=True))


def _tensor_of(
    exported_program: torch.export.ExportedProgram, records: Mapping[torch.fx.Node, InputRecord], node: torch.fx.Node
) -> torch.Tensor | None:
    """The tensor of the placeholder of a parameter, buffer or constant; None for other nodes."""
    record = records.get(node)
    if record is None or not record.is_weight:
        return None
    tensor = _tensor(exported_program, record)
    return tensor.cpu() if has_content(tensor) else None


def _move_and_make_dense(
    module: torch.fx.GraphModule, exported_program: torch.export.ExportedProgram, signature: Signature
) -> None:
    move_to_cpu(module)
    records = _records(module.graph, signature)

    def name_of(node: torch.fx.Node) -> str:
        return str(records[node].target) if node in records else node.name

    make_dense(module, partial(_tensor_of, exported_program, records), name_of)


def _copy_subgraphs(owner: torch.fx.GraphModule) -> None:
    """Replace the subgraphs of control flow operators by copies, which the passes may rewrite."""
    for node, body in subgraphs_of(owner):
        graph = torch.fx.Graph()
        graph.output(graph.graph_copy(body.graph, {}))
        copy = Workspace(body, graph)
        _copy_subgraphs(copy)
        node.target = str(node.target).replace(".", "_")
        setattr(owner, node.target, copy)


def _optimize_subgraphs(
    owner: torch.fx.GraphModule, patterns: Collection[str], context: Callable[[], PatternContext]
) -> list[FusionRecord]:
    """Optimize the subgraphs of control flow operators and fold their constants; return the fusions of each."""
    found: list[FusionRecord] = []
    for body in {id(body): body for _, body in subgraphs_of(owner)}.values():
        eliminate_identities(body.graph)
        eliminate_common_subexpressions(body.graph)
        found.append(record_fusions(apply_patterns(body.graph, patterns, context)))
        found += _optimize_subgraphs(body, patterns, context)
        fold_constants(body, {})
        eliminate_dead_code(body.graph)
    return found


def _eliminate_dead_code(graph: torch.fx.Graph, keep: Mapping[torch.fx.Node, DerivedWeight]) -> None:
    """Dead code elimination; the inputs of derived weights are used by their recipes only, not by the graph."""
    for node in keep:
        node.args, node.kwargs = (), {}
    eliminate_dead_code(graph)


_STORED_WEIGHTS_OPSET = 21
"""The first opset with DequantizeLinear of 4-bit integers, and of blocks."""


def least_default_opset(model: Any) -> int:
    """The lowest opset to export a model in unless the user specifies one; 0 without weights that are subclasses."""
    return _STORED_WEIGHTS_OPSET if has_wrapped_weights(model) else 0


def least_opset_of_program(program: torch.export.ExportedProgram) -> int:
    """The lowest opset for a captured program unless the user specifies one; 0 if it does not unpack weights."""
    placeholders = program.graph.find_nodes(op="placeholder")
    records = zip(placeholders, read_signature(program).inputs, strict=True)
    weights = {node for node, record in records if record.is_weight}
    least = (one.least_opset for one in extensions_of_graph(program.graph, weights) if one.least_opset is not None)
    return max((opset(program.graph, weights) for opset in least), default=0)


def has_operators(program: torch.export.ExportedProgram, names: Collection[str]) -> bool:
    """Whether a captured program calls one of these operators, in any overload and in any subgraph."""
    modules = (module for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule))
    nodes = (node for module in modules for node in module.graph.nodes) if names else ()
    return any(isinstance(node.target, OpOverload) and node.target._schema.name in names for node in nodes)
