"""The modules of a graph as a tree, from the metadata of its nodes and the names of its weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

import onnx_ir as ir

from .._model_files import origin_of, text_list, type_text, weight_values

__all__ = ["GraphNode", "ModuleTree", "Weight", "elements_of", "module_tree", "nested_nodes", "type_of"]

_SCOPES, _CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"

_SHOWN_ELEMENTS = 6
"""Number of elements of an integer or bool constant that are shown."""


@dataclass(frozen=True)
class Weight:
    """An initializer.

    Attributes:
        index: Its position among the initializers of the graph.
        text: Its name, element type and dims, and its elements if they are few.
        elements: Number of elements.
        bytes: Number of bytes.
        is_constant: Whether it is a small constant of the graph, such as a shape, and not one of the model's tensors.
    """

    index: int
    text: str
    elements: int
    bytes: int
    is_constant: bool


@dataclass(frozen=True)
class GraphNode:
    """A node of a graph as text.

    Attributes:
        index: Its position in the graph, subgraphs included.
        operator: The operator, with its domain unless that is ONNX.
        inputs: Names of its inputs.
        outputs: Names of its outputs with element types and dims.
        line: The user's line, ``file.py:12``; "" if it is not known.
        depth: Number of subgraphs that enclose it.
    """

    index: int
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    line: str
    depth: int


@dataclass
class ModuleTree:
    """A module with its own nodes and its submodules.

    Attributes:
        path: FQN, "" for the model.
        class_name: The class, "" if it is not known.
        nodes: The nodes that the module itself computes, in graph order.
        weights: Its own weights.
        children: Its submodules, by the last part of their FQN, in graph order.
    """

    path: str = ""
    class_name: str = ""
    nodes: list[GraphNode] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    children: dict[str, ModuleTree] = field(default_factory=dict)

    @property
    def all_modules(self) -> Iterator[ModuleTree]:
        """The module and all modules in it."""
        yield self
        for child in self.children.values():
            yield from child.all_modules

    @property
    def contents(self) -> list[GraphNode | ModuleTree]:
        """The module's own nodes and its submodules in graph order; a submodule has the place of its first node."""
        return sorted([*self.nodes, *self.children.values()], key=lambda one: one.index)

    @property
    def index(self) -> float:
        """The position of its first node, infinite without nodes."""
        return min((node.index for module in self.all_modules for node in module.nodes), default=math.inf)

    @property
    def name(self) -> str:
        """The last part of its FQN."""
        return self.path.rpartition(".")[2]

    @property
    def node_count(self) -> int:
        """The number of nodes of the module and its submodules."""
        return sum(len(module.nodes) for module in self.all_modules)

    @property
    def total_elements(self) -> int:
        """The number of elements of the weights of the module and its submodules."""
        return sum(weight.elements for module in self.all_modules for weight in module.weights)

    @property
    def total_bytes(self) -> int:
        """The bytes of the weights of the module and its submodules."""
        return sum(weight.bytes for module in self.all_modules for weight in module.weights)

    @property
    def operators(self) -> Counter[str]:
        """The operators of the module and its submodules with their numbers of nodes."""
        return Counter(node.operator for module in self.all_modules for node in module.nodes)

    def sums(self, figures: Mapping[str, float]) -> float | None:
        """The sum of a figure over the module and its submodules; None if it is not known for any of them."""
        known = [figures[module.path] for module in self.all_modules if module.path in figures]
        return sum(known) if known else None

    def largest(self, figures: Mapping[str, float]) -> float | None:
        """The largest value of a figure in the module and its submodules; None if it is not known for any of them."""
        return max((figures[module.path] for module in self.all_modules if module.path in figures), default=None)

    def at(self, path: str) -> ModuleTree:
        """The module of an FQN, which is created if it does not exist."""
        module = self
        for part in path.split(".") if path else ():
            child = f"{module.path}.{part}" if module.path else part
            module = module.children.setdefault(part, ModuleTree(child))
        return module

    def closest(self, path: str) -> ModuleTree:
        """The module of an FQN, or the closest module around it that exists."""
        module = self
        for part in path.split("."):
            if part not in module.children:
                break
            module = module.children[part]
        return module


def module_tree(graph: ir.Graph | ir.Function) -> ModuleTree:
    """Arrange the nodes and weights of a graph by module.

    Args:
        graph: A graph or function of any exporter; without metadata, all nodes belong to the model itself.
    """
    root = ModuleTree()
    for index, (node, owners) in enumerate(nested_nodes(graph)):
        path, line = origin_of(node)
        _name_classes(root, node.metadata_props)
        root.at(path).nodes.append(_as_text(node, index, line, len(owners)))
    initializers = graph.initializers.items() if isinstance(graph, ir.Graph) else ()
    for index, (name, value) in enumerate(initializers):
        path, _, _ = name.partition("::")[0].rpartition(".")
        tensor = value.const_value
        size, nbytes = (0, 0) if tensor is None else (tensor.size, tensor.nbytes)
        elements = elements_of(name, tensor)
        text = _typed(value) + (f" = {elements}" if elements else "")
        root.closest(path).weights.append(Weight(index, text, size, nbytes, bool(elements) and not path))
    return root


def nested_nodes(graph: ir.Graph | ir.Function) -> Iterator[tuple[ir.Node, tuple[int, ...]]]:
    """The nodes of a graph and of its subgraphs, each with the positions of the nodes whose subgraphs enclose it.

    The position of a node is its place in this order, in which a node precedes the nodes of its subgraphs.
    """
    position = count()

    def walk(graph: ir.Graph | ir.Function, owners: tuple[int, ...]) -> Iterator[tuple[ir.Node, tuple[int, ...]]]:
        for node in graph:
            own = next(position)
            yield node, owners
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                    yield from walk(attribute.as_graph(), (*owners, own))

    return walk(graph, ())


def type_of(value: ir.Value) -> str:
    """The element type and dims of a value: ``FLOAT[batch, 3]``."""
    dtype = "?" if value.dtype is None else value.dtype.name
    if value.shape is None:
        return type_text(value, dtype)
    dims = (str(dim) if isinstance(dim, int) else str(dim.value or "?") for dim in value.shape)
    return type_text(value, f"{dtype}[{', '.join(dims)}]")


def _typed(value: ir.Value) -> str:
    return f"{value.name}: {type_of(value)}"


def elements_of(name: str, tensor: ir.TensorProtocol | None) -> str:
    """The elements of a small constant, ``[0, 2, 1]``; "" for other tensors."""
    if tensor is None or tensor.size > (1 if tensor.dtype.is_floating_point() else _SHOWN_ELEMENTS):
        return ""
    return str(weight_values(name, tensor).tolist())


def _as_text(node: ir.Node, index: int, line: str, depth: int) -> GraphNode:
    operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    inputs = tuple("" if value is None else str(value.name) for value in node.inputs)
    outputs = tuple(_typed(output) for output in node.outputs if output.name)
    return GraphNode(index, operator, inputs, outputs, line, depth)


def _name_classes(root: ModuleTree, metadata: Mapping[str, str]) -> None:
    paths, classes = (text_list(metadata.get(key, "[]")) for key in (_SCOPES, _CLASSES))
    for path, class_name in zip(paths[:-1], classes[:-1], strict=False):
        root.at(path).class_name = class_name.rpartition(".")[2]
