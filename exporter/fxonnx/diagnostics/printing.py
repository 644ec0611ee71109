"""Text output: the graph with types, scopes and source lines, the stage timings, and files of ``artifacts_dir``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import onnx_ir as ir
import torch

from .._display import printable
from .._model_files import type_text
from .._paths import not_written
from .._user_files import is_user_file

__all__ = ["artifact_path", "graph_text", "save_exported_program", "timing_table"]

_SCOPES = "pkg.torch.onnx.name_scopes"
_STACK = "pkg.torch.onnx.stack_trace"
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_MAX_ATTRIBUTE_LENGTH = 60


def graph_text(model: ir.Model) -> str:
    """The graph of a model as text.

    Inputs, initializers, then ``%value : TYPE[dims] = Operator[attribute=...](%inputs)`` for each node, with its module
    scope and source location. The subgraphs of If, Loop and Scan are indented below their node. Functions follow.
    """
    graph = model.graph
    lines = [f"graph {graph.name} ("]
    lines += [f"  {_typed(value)}" for value in graph.inputs]
    lines += [f"  {_typed(value)}  # initializer" for value in graph.initializers.values()]
    lines.append(") {")
    lines += _nodes(graph, "  ")
    lines.append(f"  return {', '.join(_typed(value) for value in graph.outputs)}")
    lines.append("}")
    for function in model.functions.values():
        lines.append(f"function {function.domain}::{function.name} (")
        lines += [f"  {_typed(value)}" for value in function.inputs]
        lines.append(") {")
        lines += _nodes(function, "  ")
        lines.append(f"  return {', '.join(f'%{value.name}' for value in function.outputs)}")
        lines.append("}")
    return printable("\n".join(lines), lines=True)


def _nodes(graph: ir.Graph | ir.Function, indent: str) -> Iterator[str]:
    for node in graph:
        outputs = ", ".join(_typed(value) for value in node.outputs)
        inputs = ", ".join("" if value is None else f"%{value.name}" for value in node.inputs)
        bodies = {name: item for name, item in node.attributes.items() if item.type == ir.AttributeType.GRAPH}
        plain = [f"{name}={_truncated(item)}" for name, item in node.attributes.items() if name not in bodies]
        operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        attributes = f"[{', '.join(plain)}]" if plain else ""
        yield f"{indent}{outputs} = {operator}{attributes}({inputs}){_provenance(node)}"
        for name, item in bodies.items():
            body = item.as_graph()
            yield f"{indent}  {name} ({', '.join(_typed(value) for value in body.inputs)}):"
            yield from _nodes(body, indent + "    ")
            yield f"{indent}    return {', '.join(f'%{value.name}' for value in body.outputs)}"


def _typed(value: ir.Value) -> str:
    dtype = value.dtype.name if value.dtype is not None else "?"
    dims = "?" if value.shape is None else ", ".join(map(str, value.shape))
    return printable(f"%{value.name} : {type_text(value, f'{dtype}[{dims}]')}")


def _is_users(name: str) -> bool:
    package = name.split("/")[0].removesuffix(".py")
    return is_user_file(name) and package not in ("torch", "fxonnx") and package not in sys.stdlib_module_names


def _truncated(attribute: ir.Attr) -> str:
    text = repr(attribute.value)
    return text if len(text) <= _MAX_ATTRIBUTE_LENGTH else f"{text[:_MAX_ATTRIBUTE_LENGTH]}..."


def _provenance(node: ir.Node) -> str:
    """Module scope and source location from a node's metadata, if any: ``, scope: features.0 # model.py:12``."""
    scopes = re.findall(r"'([^']*)'", node.metadata_props.get(_SCOPES, ""))[:-1]
    scope = next((name for name in reversed(scopes) if name), "")
    frames = [frame for frame in _FRAME.findall(node.metadata_props.get(_STACK, "")) if _is_users(frame[0])]
    line = f"  # {Path(frames[-1][0]).name}:{frames[-1][1]}" if frames else ""
    return (f", scope: {scope}" if scope else "") + line


def timing_table(timings: Mapping[str, float]) -> str:
    """The seconds of each stage and their total as a text table."""
    rows = [*timings.items(), ("total", sum(timings.values()))]
    width = max(len(stage) for stage, _ in rows)
    return "\n".join(f"{stage.ljust(width)}  {seconds:.3f} s" for stage, seconds in rows)


def artifact_path(directory: str | os.PathLike[str], suffix: str) -> Path:
    """A new path ``onnx_export_<time><suffix>`` in the directory, which is created if it does not exist.

    Raises:
        SaveError: If the directory cannot be created.
    """
    moment = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S-%f")
    path = Path(directory, f"onnx_export_{moment}{suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(f"artifacts_dir {path.parent} cannot be created", path.parent, error) from error
    return path


def save_exported_program(exported_program: torch.export.ExportedProgram, directory: str | os.PathLike[str]) -> None:
    """Save the captured program as ``onnx_export_<time>.pt2``."""
    torch.export.save(exported_program, artifact_path(directory, ".pt2"))
