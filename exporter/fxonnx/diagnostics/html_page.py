"""The HTML page about one export or model: one self-contained file, readable without network."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import onnx_ir as ir
import torch

from .._capture.patches import missing_targets
from .._capture.plan import Attempt
from .._capture.suspicions.departures import DepartureKind
from .._model_files import type_text
from .._program import ONNXProgram
from .._program.value_comparison import Comparison
from .._public import documentation_address
from ..errors import ExportError
from .costs import GraphCosts, ModelCosts
from .module_tree import module_tree
from .page_data import ExampleInputs, page_data
from .runtime_profile import RuntimeProfile

__all__ = ["PageSubject", "render_page"]

_PLACE = re.compile(r"(?:^|\s|\()((?:[A-Za-z]:)?[^\s:()\"']+\.py):(\d+)")
_FRAME = re.compile(r'File "([^"]+\.py)", line (\d+)')
_CONTEXT = 4
"""Number of lines of source that are shown before and after a line."""


@dataclass(frozen=True)
class PageSubject:
    """The subject of a page.

    Attributes:
        title: Title of the page, such as the name of the file; "" for the class of the model, or the name of its graph.
        model: The ONNX model; None if the export failed.
        program: The exported program, if the model is one.
        exported_program: The captured program of a failed export, if the capture succeeded.
        timings: Stage name to seconds.
        attempts: The calls of torch.export.
        error: The error of a failed export.
        comparison: The comparison with the model, if there is one.
        profile: The time of each module and operator in ONNX Runtime, if it was measured.
        inputs: The example inputs and dynamic shapes of a failed export.
    """

    title: str
    model: ir.Model | None = None
    program: ONNXProgram | None = None
    exported_program: torch.export.ExportedProgram | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    attempts: Sequence[Attempt] = ()
    error: ExportError | None = None
    comparison: Comparison | None = None
    profile: RuntimeProfile | None = None
    inputs: ExampleInputs | None = None


def render_page(subject: PageSubject) -> str:
    """Render the page as HTML."""
    import jinja2  # takes longer to import than the rest of this package
    from markupsafe import Markup

    loader = jinja2.PackageLoader("fxonnx", "diagnostics/templates")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["size"] = _size
    environment.filters["operations"] = _operations
    # Scripts and styles are included as they are: Jinja would read the braces of a script as its own.
    environment.globals["source"] = lambda name: Markup(loader.get_source(environment, name)[0])
    program, model, comparison = subject.program, subject.model, subject.comparison
    graphs = {} if model is None else _graphs(model)
    trees = {name: module_tree(graph) for name, graph in graphs.items()}
    model_costs = None if model is None else ModelCosts(model, program)
    costs = {} if model_costs is None else {name: model_costs.of(graph) for name, graph in graphs.items()}
    title = subject.title or ("" if model is None else trees[""].class_name or model.graph.name)
    return environment.get_template("page.html.jinja").render(
        title=title,
        error=None if subject.error is None else _error(subject.error),
        facts=list(_facts(subject, [] if model_costs is None else _cost_facts(costs[""], model_costs.sizes))),
        costs=costs,
        stages=subject.timings,
        attempts=subject.attempts,
        trees=trees,
        data=Markup(page_data(graphs, trees)),
        interface=[] if model is None else list(_interface(model)),
        conditions=[] if program is None else list(_conditions(program)),
        program=program,
        fusions=[] if program is None else list(_fusions(program)),
        near_misses=[] if program is None else list(_near_misses(program)),
        comparison=comparison,
        profile=subject.profile,
        inputs=subject.inputs,
        errors={} if comparison is None else comparison.modules,
        captured=_captured(subject),
        log="\n".join(text for attempt in subject.attempts for text in attempt.log),
    )


def _graphs(model: ir.Model) -> dict[str, ir.Graph | ir.Function]:
    """The graph as "", and the functions by name; functions of the same name have their domain before it."""
    graphs: dict[str, ir.Graph | ir.Function] = {"": model.graph}
    for one in model.functions.values():
        graphs[f"{one.domain}::{one.name}" if one.name in graphs else one.name] = one
    return graphs


def _facts(subject: PageSubject, costs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    model, program = subject.model, subject.program
    if model is not None:
        tensors = [value.const_value for value in model.graph.initializers.values()]
        size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        elements = sum(tensor.size for tensor in tensors if tensor is not None)
        yield "opsets", ", ".join(f"{domain or 'ai.onnx'} {number}" for domain, number in model.opset_imports.items())
        yield "IR version", str(model.ir_version)
        yield "producer", f"{model.producer_name or 'unknown'} {model.producer_version or ''}"
        yield "nodes", f"{sum(1 for _ in ir.traversal.RecursiveGraphIterator(model.graph)):,}"
        if model.functions:
            yield "functions", str(len(model.functions))
        yield "weights", f"{len(tensors):,} initializers, {elements:,} parameters, {_size(size)}"
    yield from costs
    if program is not None and program.record.options.numerics != "default":
        yield "numerics", program.record.options.numerics
    if subject.timings:
        yield "time", f"{sum(subject.timings.values()):.2f} s"
    yield "versions", f"fxonnx {version('fxonnx')}, torch {torch.__version__}"


def _cost_facts(costs: GraphCosts, sizes: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """The operations and the memory of activations of the whole graph, with the sizes for which they hold."""
    at = f" at {', '.join(f'{name} = {size}' for name, size in sizes.items())}" if sizes else ""
    yield "operations", f"{_operations(costs.total_flops)}, two per multiply-add of products and convolutions{at}"
    yield "activations", f"{_size(costs.total_activations)}, {_size(costs.peak)} at once{at}"
    if costs.unknown:
        yield "not counted", f"nodes of unknown sizes: {costs.unknown:,}"


def _interface(model: ir.Model) -> Iterator[dict[str, Any]]:
    for kind, values in (("input", model.graph.inputs), ("output", model.graph.outputs)):
        for value in values:
            dims = [] if value.shape is None else list(value.shape)
            yield {
                "kind": kind,
                "name": value.name,
                "dtype": type_text(value, "?" if value.dtype is None else value.dtype.name),
                "dims": [(str(dim), False) if isinstance(dim, int) else (str(dim.value or "?"), True) for dim in dims],
            }


def _conditions(program: ONNXProgram) -> Iterator[dict[str, Any]]:
    """Constraints, assumptions, frozen arguments, rewrites and the proof; those of one line of source are together."""
    proof = program.record.proof
    entries = [
        *(("constraint", str(constraint)) for constraint in program.record.constraints),
        *(("checked by the model itself", guard) for guard in program.record.guards),
        *(("assumption", str(assumption)) for assumption in program.record.assumptions),
        *(("frozen argument", f"{name} = {value}") for name, value in program.record.frozen_arguments.items()),
        *(("rewritten", str(rewrite)) for rewrite in program.record.rewrites),
        *(("departure", str(one)) for one in proof.departures if one.kind is not DepartureKind.REWRITTEN),
        *(("compared with the model", str(run)) for run in proof.runs if not proof.is_plain),
        *([("not compared with the model", proof.skipped)] if proof.skipped else ()),
        *(("patch not applied", f"{one} ({one.kind.value})") for one in missing_targets()),
    ]
    grouped: dict[str, dict[str, Any]] = {}
    for kind, text in entries:
        excerpts = list(_excerpts(text))
        key = str([place["lines"] for place in excerpts]) if excerpts else text
        grouped.setdefault(key, {"entries": [], "excerpts": excerpts})["entries"].append((kind, text))
    yield from grouped.values()


def _fusions(program: ONNXProgram) -> Iterator[dict[str, Any]]:
    """Each fusion pattern that matched, with the modules of the matches."""
    for pattern, count in program.record.patterns.items():
        if count:
            modules = [one.module or "the model" for one in program.record.fusions if one.pattern == pattern]
            yield {"pattern": pattern, "count": count, "modules": modules}


def _near_misses(program: ONNXProgram) -> Iterator[dict[str, Any]]:
    """The near misses of fusion patterns; repeated layers, of one line and for one reason, are one entry."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for miss in program.record.near_misses:
        grouped.setdefault((miss.pattern, miss.line, miss.reason), []).append(miss.module or "the model")
    for (pattern, line, reason), modules in grouped.items():
        yield {"pattern": pattern, "reason": reason, "modules": modules, "excerpts": list(_excerpts(line))}


def _error(error: ExportError) -> dict[str, Any]:
    trace = "".join(traceback.format_exception(error)).strip()
    page = f"errors/{error.code}"
    site = documentation_address()
    link = (f"{site}/{page}.html" if site else "", f"docs/{page}.md")
    return {
        "code": error.code,
        "page": link,
        "text": str(error),
        "excerpts": list(_excerpts(str(error))),
        "trace": trace,
    }


def _excerpts(text: str) -> Iterator[dict[str, Any]]:
    """The source around each line that a text names, each line once."""
    for file, number in dict.fromkeys([*_PLACE.findall(text), *_FRAME.findall(text)]):
        line = int(number)
        numbered = {at: linecache.getline(file, at) for at in range(line - _CONTEXT, line + _CONTEXT + 1)}
        if numbered[line]:
            # Lines outside of the file are empty, blank lines are not.
            shown = [(at, source.rstrip(), at == line) for at, source in numbered.items() if source]
            yield {"place": f"{file}:{line}", "lines": shown}


def _captured(subject: PageSubject) -> str:
    """The captured graph; if the capture failed, the part that was traced before."""
    program = subject.exported_program if subject.program is None else subject.program.exported_program
    if program is not None:
        return str(program.graph)
    return "" if subject.error is None else _partial_graph(subject.error)


def _operations(count: int) -> str:
    for unit, factor in (("TFLOPs", 10**12), ("GFLOPs", 10**9), ("MFLOPs", 10**6), ("kFLOPs", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} FLOPs"


def _size(count: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def _partial_graph(error: BaseException) -> str:
    """The text of the graph that torch.export had traced when an error was raised, "" if tracing had not begun.

    torch.export drops its graph when it fails, but the frames of the traceback still refer to the tracer.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    for one in reversed(chain):
        for frame, _ in traceback.walk_tb(one.__traceback__):
            for value in frame.f_locals.values():
                graph = getattr(value, "graph", None) if isinstance(value, torch.fx.Tracer) else None
                if isinstance(graph, torch.fx.Graph) and len(graph.nodes):
                    return str(graph)
    return ""
