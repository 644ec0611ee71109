"""Assumptions of a capture about sizes: dropped where the program returns the results of the model without them.

torch assumes that a squeezed dim has not one element, and the capture that sizes are beside the edges of conditions,
also of those on sizes that depend on data, which the graph checks where no run confirms them.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fxonnx_translations._torch_compat import OpOverload, pytree

from ..._capture import Assumption, AssumptionKind, Capture
from ..._capture.constraints.constraint import Constraint, report_narrowed
from ..._capture.constraints.guard_recorder import DataEdge, line_of_node
from ..._capture.constraints.guard_sources import SQUEEZES, graphs_of
from ..._capture.rewriting import SIZE_BRANCH
from ..._capture.shapes.dim_names import DynamicSqueeze, keep_results, squeeze_results
from ..._capture.suspicions.departures import Departure, DepartureKind
from ..._cost import export_seconds, forward_seconds
from ..._prepare import unwrap_subclasses
from ..._warnings import warn_user
from ...errors import CaptureError
from ..assumption_checks import placeholder_values
from ..call_binding import bind_call
from ..verification_inputs import auto_sizes, may_index_on_gpu, resize_inputs
from .coverage import FILLS, MOVES, CodePath
from .prove import Prover, obstacle
from .runs import ProgramInterpreter
from .variations import Variation, variations, with_other_values

__all__ = ["confirm_assumed_limits", "confirm_data_edges", "confirmed_limits"]

_MOST_SIZES = 3


def confirm_assumed_limits(capture: Capture, model: Any, *, strict: bool) -> Capture:
    """Drop the assumed limits that the program does not need: at one element, it returns the results of the model.

    ``squeeze`` removes axes of one element only, so that Python sees another rank there; the captured program keeps a
    dynamic axis. ``if x.squeeze().dim() == 1: x = x.squeeze(1)`` returns the same in both ways. Results that keep such
    an axis lose it at the end of the program.

    Args:
        capture: The captured program; its squeezes get the numbers of the axes that they remove.
        model: The user's model.
        strict: Whether a remaining limit of the requested sizes is an error.

    Raises:
        CaptureError: If the example violates a remaining limit.
    """
    limits = capture.limits
    if not limits.assumed:
        return capture
    squeezes = _name_axes(capture.exported_program)
    assumed = [one for one in limits.constraints if one in limits.assumed]
    candidate = _without(capture, assumed)
    prover = Prover(candidate, model)
    confirmed = set()
    if not obstacle(capture, model):
        confirmed = _confirmed(candidate, prover, assumed)
        if len(confirmed) < len(assumed):
            confirmed = _with_squeezed_results(candidate, model, squeezes, assumed, confirmed)
    remaining = [one for one in assumed if one not in confirmed]
    kept = tuple(one for one in limits.constraints if one not in confirmed)
    found = replace(capture, limits=replace(limits, constraints=kept, assumed=frozenset()))
    if remaining:
        found.limits.check_example(prover.example.inputs)
        report_narrowed(remaining, strict=strict)
    if confirmed:
        text = "squeeze of an axis that may have one element"
        lines = dict.fromkeys(str(line_of_node(one.node) or "") for one in squeezes)
        departures = (Departure(DepartureKind.INTROSPECTION, text, line) for line in lines)
        found = replace(found, departures=(*found.departures, *departures))
    return found


def _name_axes(program: ExportedProgram) -> list[DynamicSqueeze]:
    """Make the axes that squeezes of dynamic axes remove explicit; return these squeezes."""
    found: list[DynamicSqueeze] = []
    nodes = [node for graph in graphs_of(program) for node in graph.nodes if node.target in SQUEEZES]
    for node in nodes:
        value = node.args[0].meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.dim():
            continue
        asked = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", range(value.dim()))
        axes = [axis % value.dim() for axis in (asked if isinstance(asked, Sequence) else [asked])]
        dynamic = [axis for axis in axes if not isinstance(value.shape[axis], int)]
        if not dynamic:
            continue
        removed = [axis for axis in axes if type(value.shape[axis]) is int and value.shape[axis] == 1]
        node.target, node.kwargs = torch.ops.aten.squeeze.dims, {}
        node.args = (node.args[0], removed)
        kept = frozenset(axis - sum(other < axis for other in removed) for axis in dynamic)
        found.append(DynamicSqueeze(node, kept))
    for part in program.graph_module.modules() if found else ():
        if isinstance(part, torch.fx.GraphModule):
            part.recompile()
    return found


def _with_squeezed_results(
    capture: Capture,
    model: Any,
    squeezes: Iterable[DynamicSqueeze],
    assumed: Sequence[Constraint],
    confirmed: set[Constraint],
) -> set[Constraint]:
    """The confirmed limits with results of another rank at one element, if these are more than those before."""
    program = capture.exported_program
    added = squeeze_results(program, squeezes)
    found = _confirmed(capture, Prover(capture, model), assumed) if added else confirmed
    if len(found) > len(confirmed):
        return found
    keep_results(program, added)
    return confirmed


def _confirmed(capture: Capture, prover: Prover, assumed: Iterable[Constraint]) -> set[Constraint]:
    """The limits without which the program returns the results of the model, at one element of their dims."""
    confirmed: dict[str, Constraint] = {}
    for constraint in assumed:
        name = _dim_of(constraint)
        if name is None or not _is_right(capture, prover, [name]):
            continue
        if not confirmed or _is_right(capture, prover, [*confirmed, name]):
            confirmed[name] = constraint
    return set(confirmed.values())


def _dim_of(constraint: Constraint) -> str | None:
    """The name of a dim that must not be 1; None for other constraints."""
    relation = constraint.expression
    is_plain = isinstance(relation, sympy.Ne) and relation.rhs == 1 and relation.lhs.is_Symbol
    return constraint.dims[0] if is_plain else None


def _is_right(capture: Capture, prover: Prover, names: Sequence[str]) -> bool:
    """Whether program and model return the same at one element of some dims, the others as in the example."""
    limits, call = capture.limits, prover.example
    given = limits.sizes(call.inputs)
    firsts = {limits.shared_names.get(name, name) for name in names}
    ones = {name: limits.shared_names.get(name, name) in firsts for name in given}
    sizes = {name: 1 if ones[name] else size for name, size in given.items()}
    example = Variation.of("example", call.args, call.kwargs, is_required=True)
    if sizes == given:
        return _status_of_branches(capture, prover, example) == "equal"
    if may_index_on_gpu(call.inputs):
        return False
    path = CodePath()
    prover.has_path(example, path)
    others = [name for name, is_one in ones.items() if not is_one]
    for count, each in enumerate(_with_other_sizes(sizes, others)):
        variation = _resized(capture, prover, each)
        status = _status_of_branches(capture, prover, variation)
        if status == "different" or (status != "equal" and not count):
            return False
        prover.has_path(variation, path)
        if path.is_decided:
            return True
    return False


def _resized(capture: Capture, prover: Prover, sizes: Mapping[str, int]) -> Variation:
    """Inputs of other sizes."""
    args, kwargs = resize_inputs(capture.exported_program, capture.limits, prover.example, sizes)
    label = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    return Variation.of(label, args, kwargs, is_required=True)


def _status(prover: Prover, variation: Variation) -> str:
    """The result of a comparison."""
    try:
        done = prover.run(variation)
    except CaptureError:
        return "different"
    return "not valid" if done is None else done.status


def confirmed_limits(capture: Capture, model: Any) -> frozenset[Constraint] | None:
    """The assumed relations of sizes without which a program returns the results of the model.

    The program is compared at the example, at sizes that satisfy them, at sizes that violate each of them, and at sizes
    that violate all. The model must run the same operators at all of these, except for those that only move values.

    Returns:
        The limits; None if the program is wrong at the example.
    """
    capture = replace(capture, exported_program=unwrap_subclasses(capture.exported_program))
    program = capture.exported_program
    edges = [one for one in capture.limits.assumed if _dim_of(one) is None]
    plain = [one for one in capture.limits.assumed if _dim_of(one) is not None]
    if obstacle(capture, model) or forward_seconds(program) > export_seconds(program):
        return frozenset()
    candidate = _without(capture, edges)
    prover = Prover(candidate, model)
    call = prover.example
    is_assumed = capture.limits.violated(capture.limits.sizes(call.inputs)) is None
    if is_assumed and _status(prover, Variation.of("example", call.args, call.kwargs, is_required=True)) == "different":
        return None
    if not capture.limits.assumed:
        return frozenset()

    # A program with both branches runs other operators at other sizes.
    has_both = any(one.construct == SIZE_BRANCH for one in capture.rewrites)
    paths: defaultdict[str, CodePath] | None = None if has_both else defaultdict(partial(CodePath, at_edges=False))

    def is_right(violated: Collection[Constraint], **further: bool) -> bool:
        relations = [sympy.Not(one.expression) if one in violated else one.expression for one in edges]
        found = _is_right_at(candidate, prover, relations, paths=paths, **further)
        if found is None and len(violated) == 1:
            # Not without violating others.
            only = [sympy.Not(one.expression) for one in violated]
            found = _is_right_at(candidate, prover, only, paths=paths, **further)
        return len(violated) != 1 if found is None else found

    if not is_right(()):
        return frozenset()
    _set_at_edges(paths)
    confirmed: set[Constraint] = set()
    for one in edges:
        if is_right((one,)):
            confirmed.add(one)
        elif has_both:
            return frozenset()
    if len(confirmed) > 1 and not is_right(confirmed):
        confirmed = set()
    if paths is not None and not _is_decided(paths):
        # A cache of a library may have left out code at the sizes before.
        _set_at_edges(paths, at_edges=False)
        if not is_right((), has_other_sizes=True):
            return frozenset()
        _set_at_edges(paths)
    if paths is not None and not _is_decided(paths):
        confirmed = {one for one in confirmed if is_right((one,), has_other_sizes=True)}
        confirmed = confirmed if _is_decided(paths) else set()
    if paths is not None:
        confirmed = _right_at_many(candidate, prover, edges, confirmed, paths)
    if has_both and prover.coverage.missing():
        # Branches on values are left, which other values take.
        confirmed = {one for one in confirmed if is_right((one,), has_values=True)}
    if has_both and prover.coverage.missing():
        return frozenset()
    certain = _without(capture, [*edges, *plain])
    return frozenset(confirmed | _confirmed(certain, Prover(certain, model), plain))


def _set_at_edges(paths: Mapping[str, CodePath] | None, *, at_edges: bool = True) -> None:
    for path in () if paths is None else paths.values():
        path.at_edges = at_edges


def _without(capture: Capture, constraints: Iterable[Constraint]) -> Capture:
    """A capture without some constraints, and without assumed ones."""
    limits, dropped = capture.limits, set(constraints)
    kept = tuple(one for one in limits.constraints if one not in dropped)
    return replace(capture, limits=replace(limits, constraints=kept, assumed=frozenset()))


def _is_right_at(
    capture: Capture,
    prover: Prover,
    relations: Sequence[sympy.Basic],
    *,
    paths: Mapping[str, CodePath] | None,
    has_values: bool = False,
    has_other_sizes: bool = False,
) -> bool | None:
    """Whether program and model return the same at sizes that satisfy relations; None if no such sizes are found.

    Args:
        capture: The program.
        prover: Compares it with the model.
        relations: The relations.
        paths: The operators of the model by the values of the inputs; None if they depend on sizes.
        has_values: Whether inputs have other values as well.
        has_other_sizes: Whether the sizes that no relation has are changed.
    """
    limits, call = capture.limits, prover.example
    added = [Constraint("", one, tuple(sorted(symbol.name for symbol in one.free_symbols))) for one in relations]
    found = auto_sizes(replace(limits, constraints=(*limits.constraints, *added)), call.inputs)
    if may_index_on_gpu(call.inputs):
        found = [sizes for sizes in found if sizes == limits.sizes(call.inputs)]
    found = found[:_MOST_SIZES]
    if has_other_sizes:
        related = {name for one in added for name in one.dims}
        found = [each for sizes in found[:1] for each in _with_other_sizes(sizes, sizes.keys() - related)]
    program = capture.exported_program
    given = limits.sizes(call.inputs)
    longest = export_seconds(program) / max(forward_seconds(program), 1e-9)
    statuses = []
    for sizes in found:
        if max(size / max(given.get(name, size), 1) for name, size in sizes.items()) > longest:
            continue
        variation = _resized(capture, prover, sizes)
        if paths is not None:
            statuses.append(_status_of_branches(capture, prover, variation, paths))
            continue
        for one in with_other_values(capture, variation) if has_values else (variation,):
            statuses.append(_status(prover, one))
            if not prover.coverage.missing():
                break
    return "different" not in statuses and "equal" in statuses if statuses else None


_RANGE = 41
_MOST_FURTHER_SIZES = 24
_SHARE_OF_EXPORT = 0.3
_SECONDS_PER_NODE = 2e-4
"""Of a run of program and model with records of its calls."""


def _right_at_many(
    capture: Capture,
    prover: Prover,
    edges: Sequence[Constraint],
    confirmed: set[Constraint],
    paths: Mapping[str, CodePath],
) -> set[Constraint]:
    """The confirmed edges that are right at many sizes as well, as far as these take a small part of the export.

    Numbers that are other ones at the edge may decide later conditions, for which few sizes give another answer.
    """
    program, limits, right = capture.exported_program, capture.limits, set(confirmed)
    seconds = forward_seconds(program) + _SECONDS_PER_NODE * len(program.graph.nodes)
    budget = _SHARE_OF_EXPORT * export_seconds(program) / max(seconds * len(confirmed), 1e-9)
    given = limits.sizes(prover.example.inputs)
    if may_index_on_gpu(prover.example.inputs):
        return confirmed
    for edge in confirmed:
        kept = [one for one in edges if one not in confirmed]
        violated = Constraint("", sympy.Not(edge.expression), edge.dims)
        valid = replace(limits, constraints=(*limits.constraints, *kept, violated))
        found = (sizes for sizes in _many_sizes(given, edge.dims) if valid.violated(sizes) is None)
        for sizes in islice(found, min(_MOST_FURTHER_SIZES, int(budget))):
            if _status_of_branches(capture, prover, _resized(capture, prover, sizes), paths) == "different":
                right.discard(edge)
                break
    return right


def _many_sizes(given: Mapping[str, int], names: Collection[str]) -> Iterator[dict[str, int]]:
    """Sizes around those of the example, of some dims and of all, with all remainders of small numbers."""
    for number in range(1, _RANGE):
        for changed in (names, given) if len(given) > len(names) else (names,):
            # The range is a prime number: each dim has each size once, in another order.
            yield {**given} | {
                name: max(0, given[name] - _RANGE // 2) + (7 + 5 * at) * number % _RANGE
                for at, name in enumerate(given)
                if name in changed
            }


_LARGEST_GROWTH = 16


def _with_other_sizes(sizes: Mapping[str, int], names: Collection[str]) -> Iterator[dict[str, int]]:
    """Sizes, then those with one small or divisible by many numbers, for which conditions have other answers."""
    yield dict(sizes)
    for name in sorted(names):
        for size in (2, *(-(-sizes[name] // divisor) * divisor for divisor in (64, 84))):
            if size <= sizes[name] * _LARGEST_GROWTH:
                yield {**sizes, name: size}


def _is_decided(paths: Mapping[str, CodePath]) -> bool:
    return all(path.is_decided for path in paths.values())


def _status_of_branches(
    capture: Capture, prover: Prover, variation: Variation, paths: Mapping[str, CodePath] | None = None
) -> str:
    """The result of comparisons at sizes, with values for which each branch of the program runs.

    What a branch asks about sizes is not seen at values that take the other one.
    """
    prover.coverage.begin()
    statuses = []
    for one in with_other_values(capture, variation):
        path = None if paths is None else paths[one.label.removeprefix(variation.label)]
        is_other = path is not None and not prover.has_path(one, path)
        statuses.append("different" if is_other else _status(prover, one))
        if statuses[-1] == "different" or not prover.coverage.has_untaken:
            break
    else:
        return "different" if "equal" in statuses else "not valid"
    return statuses[-1]


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_WITHOUT_VALUES = frozenset({"empty", "new_empty", "empty_like", "arange", "sym_size", "sym_numel"})
_HARMLESS = MOVES | FILLS | _WITHOUT_VALUES | {"index_select", "select_scatter"}


def confirm_data_edges(capture: Capture, model: Any) -> Capture:
    """Drop the conditions whose edges the program is right at; the graph checks the others.

    An edge is confirmed if program and model return the same there, and if all operators that the model skips have
    empty tensors, or move values.

    Raises:
        CaptureError: The error of the other attempts, if the example is at an edge that is not confirmed.
    """
    edges = capture.data_edges
    if not edges or capture.refusal is None:
        return capture
    asserted = _asserted(capture.exported_program, edges)
    if obstacle(capture, model) or len(asserted) < len(edges):
        raise capture.refusal
    runs = list(_runs(capture, model, asserted))
    confirmed = {edge for edge in edges if _is_confirmed(edge, runs)}
    remaining = [edge for edge in edges if edge not in confirmed]
    if not runs or any(edge in runs[0] for edge in remaining):
        raise capture.refusal
    for edge, nodes in asserted.items():
        for node in nodes:
            if edge in confirmed:
                node.graph.erase_node(node)
            else:
                node.target = torch.ops.aten._assert_scalar.default
    capture.exported_program.graph_module.recompile()
    if remaining:
        warn_user(
            "the model branches on sizes that depend on data, and is exported for one side:\n"
            + "\n".join(dict.fromkeys(f"  {edge.line} -> {edge.answer}" for edge in remaining))
        )
    assumptions = (
        Assumption(edge.line, edge.answer, AssumptionKind.EXAMPLE, _condition(node))
        for edge in remaining
        for node in asserted[edge]
    )
    return replace(capture, data_edges=(), assumptions=(*capture.assumptions, *assumptions))


def _asserted(program: ExportedProgram, edges: Sequence[DataEdge]) -> dict[DataEdge, list[Node]]:
    """The assertions of conditions in a program."""
    found: dict[DataEdge, list[Node]] = {}
    by_text = {edge.text: edge for edge in edges}
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.fxonnx.beside_edge.default):
        edge = by_text.get(str(node.args[1]))
        if edge is not None:
            found.setdefault(edge, []).append(node)
    return found


def _condition(assertion: Node) -> str:
    """The condition of an assertion in torch's symbols."""
    value = assertion.args[0].meta.get("val") if isinstance(assertion.args[0], Node) else None
    return str(value.node.expr) if isinstance(value, torch.SymBool) else ""


def _is_confirmed(edge: DataEdge, runs: Sequence[Mapping[DataEdge, bool]]) -> bool:
    """Whether runs at the edge, also of other iterations of a loop, compute nothing beside it."""
    statement = edge.file, edge.body
    at_edge = [harmless for run in runs for one, harmless in run.items() if (one.file, one.body) == statement]
    return edge.body is not None and bool(at_edge) and all(at_edge)


def _runs(
    capture: Capture, model: Any, asserted: Mapping[DataEdge, Sequence[Node]]
) -> Iterator[Mapping[DataEdge, bool]]:
    """For each run in which program and model return the same, the edges that it is at, and whether they are harmless.

    The first one is the example. No run follows one in which they differ.
    """
    prover = Prover(capture, model)
    for variation in variations(capture, prover.example):
        try:
            done = prover.run(variation)
        except CaptureError:
            yield from () if variation.label == "example" else [dict.fromkeys(asserted, False)]
            return
        if done is not None and done.status == "equal":
            yield _edges_at(capture, variation, asserted)
        elif variation.label == "example":
            return


def _edges_at(
    capture: Capture, variation: Variation, asserted: Mapping[DataEdge, Sequence[Node]]
) -> dict[DataEdge, bool]:
    """The edges that a call is at, and whether the operators beside each of them are harmless there."""
    program = capture.exported_program
    args, kwargs = variation.calls[0]
    call = bind_call(program, args, kwargs, None, capture.inputs.frozen)
    interpreter = _EdgeInterpreter(program.graph_module, asserted)
    copies = pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, placeholder_values(program, call.inputs, {}))
    with torch.no_grad():
        interpreter.run(*copies, enable_io_processing=False)
    return {edge: interpreter.is_harmless(edge) for edge in interpreter.reached}


class _EdgeInterpreter(ProgramInterpreter):
    """Runs a program, and records its edges.

    Attributes:
        reached: The edges at which the run is.
        active: The edges beside which something is computed.
    """

    def __init__(self, module: torch.fx.GraphModule, asserted: Mapping[DataEdge, Sequence[Node]]) -> None:
        super().__init__(module, {}, None, filler=0)
        self.reached: set[DataEdge] = set()
        self.active: set[DataEdge] = set()
        self._seen: set[DataEdge] = set()
        self._last: dict[Any, DataEdge] = {}
        self._asserted = {node: edge for edge, nodes in asserted.items() for node in nodes}

    def is_harmless(self, edge: DataEdge) -> bool:
        """Whether operators beside an edge are known, and compute nothing."""
        return edge in self._seen and edge not in self.active

    def run_node(self, n: Node) -> Any:
        """Run a node, and record edges."""
        result = super().run_node(n)
        edge = self._asserted.get(n)
        if edge is not None:
            # Statements in a loop belong to the edge of their iteration.
            self._last[edge.file, edge.body] = edge
            if not self.fetch_args_kwargs_from_env(n)[0][0]:
                self.reached.add(edge)
        beside = [one for one in self._last.values() if one not in self.active and _is_in_body(n, one)]
        self._seen.update(beside)
        if beside and not _is_harmless(n, (self.fetch_args_kwargs_from_env(n), result)):
            self.active.update(beside)
        return result


def _is_in_body(node: Node, edge: DataEdge) -> bool:
    """Whether the statements that run beside an edge call an operator, also in the functions that they call."""
    if edge.body is None or node.op != "call_function":
        return False
    first, last = edge.body
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return any(file == edge.file and first <= int(line) <= last for file, line in frames)


def _is_harmless(node: Node, values: Any) -> bool:
    """Whether an operator computes nothing: for empty tensors, or as it moves values."""
    tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    if not tensors or node.target is operator.getitem:
        return True
    if not isinstance(node.target, OpOverload):
        return False
    return any(tensor.numel() == 0 for tensor in tensors) or node.target._schema.name.partition("::")[2] in _HARMLESS
