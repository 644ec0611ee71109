"""Costs of a graph by module: floating-point operations and memory of activations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from .._model_files import origin_of
from .._program import ONNXProgram
from .._program.call_binding import bind_call
from .module_tree import nested_nodes

__all__ = ["GraphCosts", "ModelCosts"]

_VIEWS = frozenset({"Constant", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators whose result is a constant, or shares the memory of their input in runtimes."""
_LONGEST_DIM = 200
"""Number of characters of a dim that is evaluated: texts of a file may be anything."""

_Shape = tuple[int, ...]


@dataclass(frozen=True)
class GraphCosts:
    """The costs of a graph or function at given sizes of its dims.

    Attributes:
        flops: FQN of a module to the floating-point operations of its own products: two for each multiplication and
            addition of matrix products, convolutions, attention and recurrent layers.
        activations: FQN to the bytes of the results of its own nodes, without views.
        peak: The bytes of the results that are alive at once, at most; the nodes run in their order.
        unknown: Number of nodes that are not counted, because sizes depend on values.
    """

    flops: Mapping[str, int]
    activations: Mapping[str, int]
    peak: int
    unknown: int

    @property
    def total_flops(self) -> int:
        """The floating-point operations of the graph."""
        return sum(self.flops.values())

    @property
    def total_activations(self) -> int:
        """The bytes of all results of its nodes."""
        return sum(self.activations.values())


class ModelCosts:
    """The costs of the graph and the functions of a model.

    Attributes:
        sizes: Name of a dim of the inputs to the size for which the costs hold: of the program's example inputs, 2
            for files.
    """

    def __init__(self, model: ir.Model, program: ONNXProgram | None = None) -> None:
        self.sizes = _sizes_of(model, program)
        self._functions = model.functions
        self._dims: dict[str, int | None] = dict(self.sizes)
        self._known: dict[ir.OperatorIdentifier, GraphCosts] = {}

    def of(self, graph: ir.Graph | ir.Function) -> GraphCosts:
        """The costs of a graph or function; a call of a function has the function's."""
        flops, activations, unknown = Counter[str](), Counter[str](), 0
        for node, _ in nested_nodes(graph):
            path, _ = origin_of(node)
            if (called := self._called(node)) is not None:
                flops[path] += called.total_flops
                activations[path] += called.total_activations
                unknown += called.unknown
                continue
            operations, size = self._flops(node), self._bytes(node.outputs) if _is_computed(node) else 0
            unknown += operations is None or size is None
            flops[path] += operations or 0
            activations[path] += size or 0
        return GraphCosts(flops, activations, self._peak(graph), unknown)

    def _called(self, node: ir.Node) -> GraphCosts | None:
        """The costs of the function that a node calls, None for operators."""
        identifier = node.op_identifier()
        function = self._functions.get(identifier)
        if function is None:
            return None
        if identifier not in self._known:
            self._known[identifier] = GraphCosts({}, {}, 0, 0)  # a function of an invalid file may call itself
            self._known[identifier] = self.of(function)
        return self._known[identifier]

    def _peak(self, graph: ir.Graph | ir.Function) -> int:
        """The bytes of results that are alive at once, at most."""
        nodes = list(graph)
        source: dict[ir.Value, ir.Value] = {}  # of a view: the value whose memory it shares
        last: dict[ir.Value, int] = {}
        for index, node in enumerate(nodes):
            used = [value for value in _read_by(node) if value is not None]
            last.update((source.get(value, value), index) for value in used)
            if not _is_computed(node) and used:
                source.update((value, source.get(used[0], used[0])) for value in node.outputs)
        last.update((source.get(value, value), len(nodes)) for value in graph.outputs)
        freed: dict[int, int] = {}
        alive = peak = 0
        for index, node in enumerate(nodes):
            called = self._called(node)
            inner = called.peak if called else max((self._peak(one) for one in _subgraphs(node)), default=0)
            for value in node.outputs if _is_computed(node) else ():
                size = self._bytes([value]) or 0
                end = last.get(value, index)
                freed[end] = freed.get(end, 0) + size
                alive += size
            peak = max(peak, alive + inner)
            alive -= freed.pop(index, 0)
        return peak

    def _bytes(self, values: Sequence[ir.Value]) -> int | None:
        """The bytes of values, None if sizes are not known."""
        total = 0
        for value in values:
            if not value.name:
                continue
            shape = self._shape(value)
            if shape is None or value.dtype in (None, ir.DataType.STRING, ir.DataType.UNDEFINED):
                return None
            total += math.ceil(math.prod(shape) * value.dtype.bitwidth / 8)
        return total

    def _flops(self, node: ir.Node) -> int | None:
        """The operations of a node's products: 0 for other operators, None if sizes are not known."""
        count = _PRODUCTS.get(node.op_type)
        if count is None or node.domain not in ("", "com.microsoft"):
            return 0
        if node.domain and node.op_type == "Attention":
            return None  # its inputs are others than those of ONNX
        shapes = [None if value is None else self._shape(value) for value in node.inputs]
        results = [self._shape(value) for value in node.outputs]
        try:
            return 2 * count(node, shapes, results)
        except (IndexError, TypeError, KeyError, ValueError):
            return None  # an input or result that the formula needs has no known shape, or another rank

    def _shape(self, value: ir.Value) -> _Shape | None:
        if value.shape is None:
            return None
        sizes = [dim if isinstance(dim, int) else self._size(dim) for dim in value.shape]
        known = tuple(size for size in sizes if size is not None)
        return known if len(known) == len(sizes) else None

    def _size(self, dim: ir.SymbolicDim) -> int | None:
        """The size of a symbolic dim, such as ``2*batch``."""
        text = dim.value
        if text is None:
            return None
        if text not in self._dims:
            self._dims[text] = None
            if len(text) <= _LONGEST_DIM and "**" not in text:
                try:
                    size = dim.evaluate(self.sizes)
                except (ValueError, TypeError, ZeroDivisionError):
                    size = None  # files may have any text, not only expressions
                self._dims[text] = size if isinstance(size, int) and size >= 0 else None
        return self._dims[text]


def _sizes_of(model: ir.Model, program: ONNXProgram | None) -> dict[str, int]:
    """The size of each named dim of the graph inputs."""
    values: Sequence[object] = [None] * len(model.graph.inputs)
    if program is not None and program.record.example_inputs is not None:
        record, known = program.record, program.record.capture.inputs
        args, kwargs = program.record.example_inputs
        exported = record.capture.exported_program
        values = bind_call(exported, args, kwargs, record.forward, known.frozen, known.lists).inputs
    sizes: dict[str, int] = {}
    for graph_input, value in zip(model.graph.inputs, values, strict=False):  # states have no value
        dims = enumerate(() if graph_input.shape is None else graph_input.shape)
        for axis, dim in dims:
            if not isinstance(dim, int) and dim.value is not None and dim.value.isidentifier():
                shape = getattr(value, "shape", None)
                sizes.setdefault(dim.value, 2 if shape is None or len(shape) <= axis else int(shape[axis]))
    return sizes


def _is_computed(node: ir.Node) -> bool:
    """Whether the results have memory of their own."""
    return bool(node.domain) or node.op_type not in _VIEWS


def _subgraphs(node: ir.Node) -> list[ir.Graph]:
    attributes = [one for one in node.attributes.values() if one.type == ir.AttributeType.GRAPH and not one.is_ref()]
    return [attribute.as_graph() for attribute in attributes]


def _read_by(node: ir.Node) -> list[ir.Value | None]:
    """The inputs of a node and those that its subgraphs read."""
    inner = [value for one in _subgraphs(node) for each, _ in nested_nodes(one) for value in each.inputs]
    return [*node.inputs, *inner, *(value for one in _subgraphs(node) for value in one.outputs)]


_Count = Callable[[ir.Node, "list[_Shape | None]", "list[_Shape | None]"], int]
"""The multiplications of a node from the shapes of inputs and results; unknown ones raise TypeError or IndexError."""


def _matmul(node: ir.Node, inputs: list[_Shape | None], results: list[_Shape | None]) -> int:
    transposed = node.attributes.get_int("transA", 0)
    return math.prod(_known(results[0])) * _known(inputs[0])[-2 if transposed else -1]


def _conv(weight: int) -> _Count:
    def count(node: ir.Node, inputs: list[_Shape | None], results: list[_Shape | None]) -> int:
        return math.prod(_known(results[0])) * math.prod(_known(inputs[weight])[1:])

    return count


def _conv_transpose(node: ir.Node, inputs: list[_Shape | None], results: list[_Shape | None]) -> int:
    return math.prod(_known(inputs[0])) * math.prod(_known(inputs[1])[1:])


def _block_product(node: ir.Node, inputs: list[_Shape | None], results: list[_Shape | None]) -> int:
    return math.prod(_known(results[0])) * node.attributes["K"].as_int()


def _recurrent(node: ir.Node, inputs: list[_Shape | None], results: list[_Shape | None]) -> int:
    return math.prod(_known(inputs[0])[:2]) * (math.prod(_known(inputs[1])) + math.prod(_known(inputs[2])))


def _attention(node: ir.Node, inputs: list[_Shape | None], results: list[_Shape | None]) -> int:
    """Queries with keys, and weights with values; the keys are those of the cache as well, if the node returns it."""
    keys = _known(results[1] if len(results) > 1 and results[1] else inputs[1])[-2]
    queries = results[0] if inputs[1] is None else inputs[0]  # without keys, the first input has all three
    return keys * (math.prod(_known(queries)) + math.prod(_known(results[0])))


def _einsum(node: ir.Node, inputs: list[_Shape | None], results: list[_Shape | None]) -> int:
    """The product of the sizes of all labels; an ellipsis has none."""
    terms = node.attributes["equation"].as_string().replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, inputs, strict=True):
        sizes.update(zip(term, _known(shape), strict=True))
    return math.prod(sizes.values()) if len(terms) > 1 else 0


def _known(shape: _Shape | None) -> _Shape:
    if shape is None:
        raise TypeError
    return shape


_PRODUCTS: Mapping[str, _Count] = MappingProxyType(
    {
        **dict.fromkeys(("FusedMatMul", "Gemm", "MatMul", "MatMulInteger", "QLinearMatMul", "QGemm"), _matmul),
        **dict.fromkeys(("Conv", "ConvInteger", "FusedConv"), _conv(1)),
        **dict.fromkeys(("QLinearConv",), _conv(3)),
        **dict.fromkeys(("Attention", "GroupQueryAttention", "MultiHeadAttention"), _attention),
        **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
        "ConvTranspose": _conv_transpose,
        "DeformConv": _conv(1),
        "Einsum": _einsum,
        "MatMulNBits": _block_product,
    }
)
