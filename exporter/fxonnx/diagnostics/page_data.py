"""The data of the page's scripts, as JSON: nodes with their attributes, values and subgraphs.

The list of the page has its texts in HTML; the side panel, the search and the picture of the graph use this data.
"""

from __future__ import annotations

import inspect
import json
import pprint
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fxonnx_translations._torch_compat import pytree

from .._capture.inputs.pytree_objects import flatten_objects
from .._display import printable
from .._model_files import origin_of, weight_values
from .._request import Request
from .module_tree import ModuleTree, elements_of, nested_nodes, type_of

__all__ = ["ExampleInputs", "example_inputs", "page_data"]

_SHOWN_ELEMENTS = 12
"""Number of elements of a list or tensor that are shown."""
_SHOWN_CHARACTERS = 400
"""Number of characters of an attribute that are shown."""
_TRACE = "pkg.torch.onnx.stack_trace"
_SHOWN_ELSEWHERE = {"namespace", "pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.name_scopes", _TRACE}
"""Keys of a node's metadata that the page shows as module, class and stack trace."""


class _Texts:
    """The texts of the data, each of which is written once; a text is its position among them."""

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def __getitem__(self, text: str) -> int:
        return self._positions.setdefault(text, len(self._positions))

    def each(self, texts: Mapping[str, str]) -> dict[str, int]:
        """The positions of the values of a mapping."""
        return {key: self[text] for key, text in texts.items()}

    def listed(self) -> list[str]:
        """The texts."""
        return list(self._positions)


def page_data(graphs: Mapping[str, ir.Graph | ir.Function], trees: Mapping[str, ModuleTree]) -> str:
    """The data of graphs as JSON that is safe inside a script element.

    Args:
        graphs: Name to graph or function, "" for the main graph.
        trees: The modules of each of them.
    """
    texts = _Texts()
    data = [_graph(graph, trees[name], texts) for name, graph in graphs.items()]
    content = _printable({"graphs": data, "texts": texts.listed()})
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")  # the end of the element, or a comment


def _printable(data: Any) -> Any:
    """The data with printable texts and keys."""
    if isinstance(data, str):
        return printable(data, lines=True)
    if isinstance(data, dict):
        return {printable(key, lines=True): _printable(each) for key, each in data.items()}
    return [_printable(each) for each in data] if isinstance(data, list) else data


def _graph(graph: ir.Graph | ir.Function, tree: ModuleTree, texts: _Texts) -> dict[str, Any]:
    positions: dict[ir.Value, int] = {}
    values: list[list[Any]] = []

    def place(value: ir.Value | None) -> int:
        """The position of a value, -1 for an omitted input."""
        if value is None:
            return -1
        if value not in positions:
            positions[value] = len(values)
            tensor = value.const_value if value.is_initializer() else None
            weight = [] if tensor is None else [tensor.nbytes, texts[elements_of(value.name or "", tensor)]]
            values.append([value.name or "", texts[type_of(value)], *weight])
        return positions[value]

    def places(values: Iterable[ir.Value | None]) -> list[int]:
        return [place(value) for value in values]

    places(graph.initializers.values() if isinstance(graph, ir.Graph) else ())  # in the order of the list
    return {
        "name": graph.name if isinstance(graph, ir.Function) else "",
        "domain": graph.domain if isinstance(graph, ir.Function) else "",
        "inputs": places(graph.inputs),
        "outputs": places(graph.outputs),
        "nodes": [
            _node(node, places, texts) | ({"owner": owners[-1]} if owners else {})
            for node, owners in nested_nodes(graph)
        ],
        "values": values,
        "opsets": dict(graph.opset_imports),
        "classes": {module.path: module.class_name for module in tree.all_modules if module.class_name},
    }


def _node(node: ir.Node, places: Any, texts: _Texts) -> dict[str, Any]:
    path, line = origin_of(node)
    metadata = {key: text for key, text in node.metadata_props.items() if key not in _SHOWN_ELSEWHERE}
    if node.doc_string:
        metadata["doc_string"] = node.doc_string
    subgraphs = [
        [name, places(graph.inputs), places(graph.outputs)]
        for name, attribute in node.attributes.items()
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref()
        for graph in (attribute.as_graph(),)
    ]
    entries = {
        "name": node.name,
        "domain": node.domain,
        "inputs": places(node.inputs),
        "outputs": places(node.outputs),
        "attributes": texts.each({name: _shown(attribute) for name, attribute in node.attributes.items()}),
        "subgraphs": subgraphs,
        "module": texts[path],
        "line": texts[line],
        "trace": [texts[frame] for frame in _frames(node.metadata_props.get(_TRACE, ""))],
        "metadata": texts.each(metadata),
    }
    return {"type": node.op_type} | {key: entry for key, entry in entries.items() if entry not in ("", [], {}, None)}


def _frames(trace: str) -> list[str]:
    """The frames of a stack trace, outermost first: repeated ones are written once."""
    first, *others = trace.split("\n  File ")
    return [first.removeprefix("  "), *(f"File {frame}" for frame in others)] if trace else []


def _shown(attribute: ir.Attr) -> str:
    """The value of an attribute, abbreviated if it is long."""
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    value = attribute.value
    if attribute.type == ir.AttributeType.GRAPH:
        count = sum(1 for _ in nested_nodes(attribute.as_graph()))
        text = f"subgraph with {count} node{'' if count == 1 else 's'}"
    elif attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        text = f"{tensor.dtype.name}[{', '.join(map(str, tensor.shape))}]"
        if tensor.size <= _SHOWN_ELEMENTS:
            text += f" = {weight_values(attribute.name, tensor).tolist()}"
    elif isinstance(value, (list, tuple)):
        others = len(value) - _SHOWN_ELEMENTS
        shown = ", ".join(map(_element, value[:_SHOWN_ELEMENTS]))
        text = f"[{shown}{f', … {others:,} more' if others > 0 else ''}]"
    else:
        text = _element(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _element(value: Any) -> str:
    # A float attribute has the precision of float32, so that 1e-5 is read as 9.999999747378752e-06.
    return str(np.float32(value)) if isinstance(value, float) else str(value)


_LONGEST = 60
"""Number of characters of a string or number that is shown."""


@dataclass(frozen=True)
class ExampleInputs:
    """The inputs of an export.

    Attributes:
        rows: Path, element type or class, and dims or value of each leaf of the example inputs.
        shapes: The arguments that make dims dynamic, as they were passed.
    """

    rows: tuple[tuple[str, str, str], ...]
    shapes: str


def example_inputs(request: Request) -> ExampleInputs:
    """Describe the example inputs; values of tensors are left out."""
    given = [(name, value) for name in ("dynamic_shapes", "dynamic_axes") if (value := getattr(request, name))]
    shapes = [f"{name} = {pprint.pformat(value, width=100, sort_dicts=False)}" for name, value in given]
    rows = [*_rows(request.model, request.args, request.kwargs)]
    further = request.more_inputs if isinstance(request.more_inputs, Sequence) else ()
    for number, pair in enumerate(further):
        if isinstance(pair, tuple) and len(pair) == 2:
            rows += [(f"more_inputs[{number}] {path}", kind, dims) for path, kind, dims in _rows(request.model, *pair)]
    return ExampleInputs(tuple(rows), "\n".join(shapes))


def _rows(model: Any, args: Any, kwargs: Any) -> Iterator[tuple[str, str, str]]:
    """A row for each leaf; the arguments may be those that the export refuses."""
    positional = args if isinstance(args, tuple) else (args,)
    names = _parameters(model, len(positional))
    for name, value in [*zip(names, positional, strict=True), *(kwargs.items() if isinstance(kwargs, Mapping) else ())]:
        try:
            leaves, _ = pytree.tree_flatten_with_path(flatten_objects(value))
        except RecursionError:  # a list that contains itself
            leaves = [((), value)]
        for path, leaf in leaves:
            yield f"{name}{pytree.keystr(path)}", *_described(leaf)


def _parameters(model: Any, count: int) -> list[str]:
    """The names of the first parameters of forward, \"args[2]\" for those beyond it."""
    forward = getattr(model, "forward", None)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known: list[str] = []
    if isinstance(model, torch.nn.Module) and callable(forward):
        try:
            known = [one.name for one in inspect.signature(forward).parameters.values() if one.kind in kinds]
        except (TypeError, ValueError):
            known = []  # a scripted module
    return [*known, *(f"args[{index}]" for index in range(len(known), count))][:count]


def _described(leaf: Any) -> tuple[str, str]:
    """Element type and dims of a tensor, class and value of a number or string, and the class of anything else."""
    if isinstance(leaf, torch.Tensor):
        return str(leaf.dtype).removeprefix("torch."), f"[{', '.join(map(str, leaf.shape))}]"
    shown = repr(leaf) if isinstance(leaf, (bool, int, float, complex, str, torch.dtype, type(None))) else ""
    return type(leaf).__name__, shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
