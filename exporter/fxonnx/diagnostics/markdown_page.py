"""The Markdown report on one export, successful or failed."""

from __future__ import annotations

import collections
import traceback
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from .._capture.patches import missing_targets
from .._capture.plan import Attempt
from .._model_files import type_text
from .._program import ONNXProgram
from .._program.interface import data_dependent_dims
from ..errors import ExportError
from .page_data import ExampleInputs

__all__ = ["markdown_page"]


def markdown_page(
    timings: Mapping[str, float],
    attempts: Sequence[Attempt],
    program: ONNXProgram | None,
    error: ExportError | None,
    inputs: ExampleInputs | None,
) -> str:
    """Compose the page.

    Args:
        timings: Stage name to seconds.
        attempts: The calls of torch.export.
        program: The exported program, None if the export failed.
        error: The error of a failed export.
        inputs: Its example inputs and dynamic shapes.
    """
    lines = ["# fxonnx export report", "", f"The export {'succeeded' if error is None else 'failed'}."]
    if error is not None:
        trace = "".join(traceback.format_exception(error)).strip()
        lines += ["", "## Error", "", f"{error.code} {type(error).__name__}", ""]
        lines += ["```", str(error), "```", "", "```pytb", trace, "```"]
    if inputs is not None:
        lines += ["", "## Example inputs", "", *_table(["input", "type", "dims or value"], inputs.rows)]
        lines += ["", "```python", inputs.shapes or "dynamic_shapes = None", "```"]
    lines += ["", "## Stages", ""]
    lines += _table(["stage", "seconds"], [[stage, f"{seconds:.3f}"] for stage, seconds in timings.items()])
    lines += ["", "## Attempts of the capture", "", *(f"{number}. {one}" for number, one in enumerate(attempts, 1))]
    log = [text for attempt in attempts for text in attempt.log]
    lines += ["", "## Log of torch", "", "```", *log, "```"] if log else []
    if program is not None:
        lines += _program_sections(program)
    return "\n".join(lines) + "\n"


def _program_sections(program: ONNXProgram) -> list[str]:
    model, graph = program.model, program.model.graph
    counts = collections.Counter(node.op_type for node in graph.all_nodes())
    operators = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ends = [("input", value) for value in graph.inputs] + [("output", value) for value in graph.outputs]
    numerics = "" if program.record.options.numerics == "default" else f", {program.record.options.numerics} numerics"
    dims = data_dependent_dims(graph, program.record.capture)
    header = f"opset {model.opset_imports['']}, IR version {model.ir_version}{numerics}, {len(graph)} nodes"
    return [
        *("", "## Model", "", f"{header}, {len(graph.initializers)} initializers", ""),
        *_table(["", "name", "type"], [[kind, value.name, _type(value)] for kind, value in ends]),
        "",
        *_table(["operator", "nodes"], operators),
        "",
        *_table(["fusion pattern", "matches"], program.record.patterns.items()),
        *_function_section(model),
        *_quantization_section(program),
        *("", "## Constraints on sizes", ""),
        *([f"- {constraint}" for constraint in program.record.constraints] or ["None."]),
        *("", "## Checked by the model itself", ""),
        *([f"- {guard}" for guard in program.record.guards] or ["None."]),
        *("", "## Data-dependent dims", ""),
        *([f"- {dim}: {line}" for dim, line in dims.items()] or ["None."]),
        *("", "## Frozen arguments", ""),
        *([f"- {name} = {value}" for name, value in program.record.frozen_arguments.items()] or ["None."]),
        *("", "## Assumptions", ""),
        *([f"- {assumption}" for assumption in program.record.assumptions] or ["None."]),
        *("", "## Rewritten control flow", ""),
        *([f"- {rewrite}" for rewrite in program.record.rewrites] or ["None."]),
        *("", "## Patches that do not apply", ""),
        *([f"- {one} ({one.kind.value})" for one in missing_targets()] or ["None."]),
        *("", "## Proof", "", "```", str(program.record.proof), "```"),
        *("", "## Exported program", "", "```python", _program_text(program), "```"),
    ]


def _program_text(program: ONNXProgram) -> str:
    try:
        return str(program.exported_program)
    except KeyError as error:
        return f"torch cannot print the program: it has no abbreviation for {error}"


def _quantization_section(program: ONNXProgram) -> list[str]:
    if program.record.options.quantize is None or program.record.example_inputs is None:
        return []
    columns, *rows = program.quantization.report().rows()
    return ["", "## Quantization", "", *_table(columns, rows)]


def _function_section(model: ir.Model) -> list[str]:
    if not model.functions:
        return []
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    calls = collections.Counter(node.op_identifier() for graph in graphs for node in graph.all_nodes())
    rows = [
        [f"{function.domain}::{function.name}", len(function), calls[identifier]]
        for identifier, function in model.functions.items()
    ]
    return ["", *_table(["function", "nodes", "calls"], rows)]


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return [_row(columns), "|---" * len(columns) + "|", *map(_row, rows)]


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _type(value: ir.Value) -> str:
    dtype = value.dtype.name if value.dtype is not None else "?"
    return type_text(value, f"{dtype}[{', '.join(map(str, value.shape or ()))}]")
