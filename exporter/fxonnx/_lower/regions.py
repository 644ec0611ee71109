"""Regions of a graph that may become functions: their nodes, interface and structure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx_ir as ir

from fxonnx_translations._builder.constants import constant_key
from fxonnx_translations._builder.initializers import DerivedTensor

__all__ = [
    "FULL_NAME",
    "REGIONS",
    "SCOPES",
    "Interface",
    "Region",
    "Scope",
    "Structure",
    "all_nodes",
    "find_regions",
    "full_name_of",
    "interface_of",
    "invariant_nodes",
    "is_weight",
    "literal_of",
    "nodes_after",
    "subgraphs",
]

SCOPES = "fxonnx.scopes"
"""Key of ``ir.Node.meta``: the calls of modules that enclose the node, outermost first."""
REGIONS = "fxonnx.regions"
"""Key of ``ir.Node.meta``: the calls of marked regions that enclose the node, outermost first."""

FULL_NAME = "fxonnx.full_name"
"""Key of ``ir.Value.meta`` of a function's input that is a weight: its name in the first call."""

_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_LARGEST_LITERAL = 1024
"""Maximum number of elements of a literal that is stored in each function that uses it; others are inputs."""
_SYMBOL = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Scope:
    """One call of a module or of a marked region.

    Attributes:
        key: FQN of the module, with a suffix ``@n`` for further calls of it; or the identifier of the call of a region.
        name: Qualified name of the class, or name of the region.
    """

    key: str
    name: str

    @property
    def path(self) -> str:
        """FQN of the module."""
        return self.key.split("@")[0]


@dataclass
class Region:
    """The nodes that one scope encloses, in the order of the graph.

    Attributes:
        scope: The scope.
        kind: ``SCOPES`` or ``REGIONS``.
        depth: Position of the scope among the nodes'.
        nodes: The nodes.
    """

    scope: Scope
    kind: str
    depth: int
    nodes: list[ir.Node]

    def depths(self) -> dict[str, int]:
        """For ``SCOPES`` and ``REGIONS``, the number of scopes that enclose the region."""
        return self._shared_depths() | {self.kind: self.depth}

    def inner_depths(self) -> dict[str, int]:
        """For ``SCOPES`` and ``REGIONS``, the number of scopes that the nodes of a function do not have any more."""
        return self._shared_depths() | {self.kind: self.depth + 1}

    def _shared_depths(self) -> dict[str, int]:
        depths = {}
        for key in (SCOPES, REGIONS):
            columns = zip(*(node.meta.get(key, ()) for node in self.nodes), strict=False)
            depths[key] = sum(1 for _ in itertools.takewhile(lambda scopes: len(set(scopes)) == 1, columns))
        return depths

    def enclosing(self) -> list[Scope]:
        """The calls of modules that enclose the region; its own, if it is a module."""
        count = self.depth + 1 if self.kind == SCOPES else self._shared_depths()[SCOPES]
        return list(self.nodes[0].meta.get(SCOPES, ())[:count])


Structure: TypeAlias = tuple[Any, ...]
"""Hashable description of a region, equal for isomorphic regions."""


@dataclass
class Interface:
    """A region with its structure, and the values by which it is connected to the rest of the graph.

    Attributes:
        region: The region.
        structure: Equal for isomorphic regions.
        sources: The first use of each input: a node and the position among its inputs.
        values: All values computed in the region, those in subgraphs included; equal positions in isomorphic regions.
    """

    region: Region
    structure: Structure
    sources: list[tuple[ir.Node, int]]
    values: list[ir.Value]

    def input(self, index: int) -> ir.Value:
        """An input's value: it changes when the region that computes it is replaced by a call."""
        node, position = self.sources[index]
        value = node.inputs[position]
        if value is None:
            raise ValueError(f"{node.name} has no input {position}")
        return value

    def used_outside(self) -> list[int]:
        """Positions of the values that the rest of the graph uses."""
        inside = set(all_nodes(self.region.nodes))
        # Removed nodes, which have no graph, may still be listed as consumers.
        return [
            index
            for index, value in enumerate(self.values)
            if any(user not in inside and user.graph is not None for user in value.consumers())
            or (value.is_graph_output() and value.producer() in self.region.nodes)
        ]


def all_nodes(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """The nodes and those in their subgraphs, each before the nodes that it contains."""
    for node in nodes:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body)


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The subgraphs of If, Loop and Scan."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def literal_of(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of a small literal, which a function contains as a Constant; None for weights and other values."""
    node = value.producer()
    if node is not None:
        return node.attributes["value"].as_tensor() if node.op_type == "Constant" and not node.domain else None
    tensor = value.const_value
    if tensor is None or isinstance(tensor, DerivedTensor) or _KIND in value.metadata_props:
        return None
    return tensor if tensor.size <= _LARGEST_LITERAL else None


def full_name_of(value: ir.Value) -> str:
    """The name of a value in the main graph."""
    return str(value.meta.get(FULL_NAME, value.name))


def nodes_after(nodes: Sequence[ir.Node], region: Sequence[ir.Node]) -> list[ir.Node] | None:
    """The nodes between the nodes of a region that depend on it; None if a node of the region depends on these.

    Args:
        nodes: All nodes of the graph, in topological order.
        region: The nodes of the region, in the same order.
    """
    own = set(region)
    dependent: set[ir.Value] = set()
    following: list[ir.Node] = []
    for node in nodes[nodes.index(region[0]) : nodes.index(region[-1]) + 1]:
        inputs = [value for inner in all_nodes([node]) for value in inner.inputs if value is not None]
        is_following = any(value in dependent for value in inputs)
        if node in own:
            if is_following:
                return None
            continue
        if is_following or any(value.producer() in own for value in inputs):
            dependent.update(node.outputs)
            following.append(node)
    return following


def invariant_nodes(nodes: Sequence[ir.Node], regions: Sequence[Region], *, sizes_only: bool) -> frozenset[ir.Node]:
    """The nodes of regions that other parts of the graph use as well, and that do not belong to the region.

    CSE and the memo of sizes leave such nodes, of which a mask, a size and the transpose of a shared weight are
    examples, in the first region that needs them.

    Args:
        nodes: All nodes of the graph, in topological order.
        regions: Disjoint or nested regions.
        sizes_only: Whether only sizes and constants are invariant; otherwise everything that is not computed from both
            data and weights of the regions.
    """
    prefixes = tuple({f"{region.scope.path}." for region in regions})
    owner = {node: index for index, region in enumerate(regions) for node in region.nodes}
    of_data: set[ir.Value] = set()
    of_weights: set[ir.Value] = set()
    candidates: list[ir.Node] = []
    for node in nodes:
        inputs = [value for inner in all_nodes([node]) for value in inner.inputs if value is not None]
        is_size = sizes_only and node.op_type == "Shape" and inputs[0].producer() not in owner
        has_data = not is_size and any(value in of_data or _is_data(value) for value in inputs)
        has_weights = any(value in of_weights or full_name_of(value).startswith(prefixes) for value in inputs)
        computed = [value for inner in all_nodes([node]) for value in inner.outputs]
        of_data.update(computed if has_data else ())
        of_weights.update(computed if has_weights else ())
        if node in owner and not (has_data and (sizes_only or has_weights)):
            candidates.append(node)
    top = {inner: node for node in nodes for inner in all_nodes([node])}
    hoisted: set[ir.Node] = set()
    for node in reversed(candidates):
        # Removed nodes may still be listed as users.
        users = [top[user] for output in node.outputs for user in output.consumers() if user in top]
        is_shared = any(user in hoisted or owner.get(user) != owner[node] for user in users)
        if is_shared or any(output.is_graph_output() for output in node.outputs):
            hoisted.add(node)
    return frozenset(hoisted)


def _is_data(value: ir.Value) -> bool:
    """Whether a value without producer varies from call to call: not a weight or literal."""
    return value.producer() is None and not is_weight(value) and literal_of(value) is None


def is_weight(value: ir.Value) -> bool:
    """Whether a value is an initializer, or the input of a function that takes one."""
    return value.is_initializer() or FULL_NAME in value.meta


class _Encoder:
    """Encodes the nodes of one region."""

    def __init__(self) -> None:
        self.values: dict[ir.Value, int] = {}
        self.inputs: dict[ir.Value, int] = {}
        self.sources: list[tuple[ir.Node, int]] = []
        self._symbols: dict[str, str] = {}

    def node(self, node: ir.Node) -> Structure:
        inputs = tuple(self._input(node, index, value) for index, value in enumerate(node.inputs))
        attributes = tuple(self._attribute(node.attributes[name]) for name in sorted(node.attributes))
        outputs = tuple(self._computed(value) for value in node.outputs)
        return node.domain, node.op_type, node.overload, node.version, inputs, attributes, outputs

    def _input(self, node: ir.Node, index: int, value: ir.Value | None) -> Any:
        if value is None:
            return None
        if value in self.values:
            return self.values[value]
        literal = literal_of(value)
        if literal is not None:
            return ("literal", *constant_key(literal))
        if value not in self.inputs:
            self.inputs[value] = len(self.inputs)
            self.sources.append((node, index))
        return "input", self.inputs[value], self._type(value)

    def _computed(self, value: ir.Value) -> Structure:
        self.values[value] = len(self.values)
        return self._type(value)

    def _type(self, value: ir.Value) -> Structure:
        """Type and shape; symbols are numbered, since the names of dims may differ between regions."""
        dims = None
        if value.shape is not None:
            dims = tuple(
                dim if isinstance(dim, int) else _SYMBOL.sub(self._symbol, str(dim.value)) for dim in value.shape
            )
        return repr(value.type), dims

    def _symbol(self, match: re.Match[str]) -> str:
        return self._symbols.setdefault(match[0], f"#{len(self._symbols)}")

    def _attribute(self, attribute: ir.Attr) -> Structure:
        if attribute.type == ir.AttributeType.TENSOR:
            return attribute.name, *constant_key(attribute.as_tensor())
        if attribute.type == ir.AttributeType.GRAPH:
            return attribute.name, self._body(attribute.as_graph())
        if attribute.type == ir.AttributeType.GRAPHS:
            return attribute.name, *map(self._body, attribute.as_graphs())
        return attribute.name, attribute.type, repr(attribute.value)

    def _body(self, graph: ir.Graph) -> Structure:
        inputs = tuple(map(self._computed, graph.inputs))
        nodes = tuple(map(self.node, graph))
        return inputs, nodes, tuple(self.values[value] for value in graph.outputs)


def interface_of(region: Region) -> Interface:
    """Describe a region so that regions that one function can represent have equal structures."""
    encoder = _Encoder()
    structure = tuple(map(encoder.node, region.nodes))
    return Interface(region, structure, encoder.sources, list(encoder.values))


def find_regions(nodes: Iterable[ir.Node], kind: str) -> list[Region]:
    """The regions of all scopes of a graph's nodes, in order of appearance.

    Args:
        nodes: The nodes.
        kind: ``SCOPES`` or ``REGIONS``.
    """
    regions: dict[Scope, Region] = {}
    for node in nodes:
        for depth, scope in enumerate(node.meta.get(kind, ())):
            if scope.path:
                regions.setdefault(scope, Region(scope, kind, depth, [])).nodes.append(node)
    return list(regions.values())
