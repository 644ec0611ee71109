"""Restrictions on operators that a table of element types cannot express."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

__all__ = ["Restriction", "constant_of"]


@dataclass(frozen=True)
class Restriction:
    """Forms of one operator that a runtime does not run.

    Attributes:
        constant: Inputs that must be constants.
        absent: Inputs that must be omitted.
        outputs: The number of outputs that are supported; None for all.
        ranks: Numbers of axes of the first input that are supported; empty for any.
        static: Whether the first input must have a static shape.
        attributes: Attribute to its supported values; the default of an attribute that is omitted is supported.
        types: Element types of the first input that the restriction is about; empty for all.
        whole: Inputs that are not broadcast: their last axis must have the size of the first input's.
    """

    constant: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    outputs: int | None = None
    ranks: tuple[int, ...] = ()
    static: bool = False
    attributes: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: MappingProxyType({}))
    types: frozenset[ir.DataType] = frozenset()
    whole: tuple[int, ...] = ()

    def violations(self, node: ir.Node, inputs: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """Yield the problem and the remedy for each part of the restriction that a node violates.

        Args:
            node: The node.
            inputs: Names of the operator's inputs.
        """
        first = _input(node, 0)
        if self.types and (first is None or first.dtype not in self.types):
            return
        for index in self.whole:
            size, whole = _last_size(_input(node, index)), _last_size(first)
            if size != whole and None not in (size, whole) and (isinstance(whole, int) or size == 1):
                problem = f"its input {_name(inputs, index)} has {size} elements in its last axis and is not broadcast"
                yield f"{problem}: the results are wrong", "expand the input to the size of that axis"
        for index in self.constant:
            value = _input(node, index)
            if value is not None and constant_of(value) is None:
                yield f"its input {_name(inputs, index)} must be a constant", "make the sizes it depends on static"
        for index in self.absent:
            if _input(node, index) is not None:
                yield f"its input {_name(inputs, index)} is not supported", "export with a lower opset_version"
        if self.outputs is not None and any(map(_is_used, node.outputs[self.outputs :])):
            count = "output is" if self.outputs == 1 else f"{self.outputs} outputs are"
            yield f"only its first {count} supported", "compute the other outputs with other operators"
        yield from self._shape_violations(first)
        for name, supported in self.attributes.items():
            attribute = node.attributes.get(name)
            if attribute is None or attribute.is_ref():
                continue
            values = attribute.value if isinstance(attribute.value, (list, tuple)) else (attribute.value,)
            if not all(value in supported for value in values):
                allowed = ", ".join(map(str, supported)) or "none"
                yield f"its attribute {name} is {attribute.value}, supported: {allowed}", "use another form of it"

    def _shape_violations(self, value: ir.Value | None) -> Iterator[tuple[str, str]]:
        shape = None if value is None else value.shape
        if shape is None:
            return
        if self.ranks and len(shape) not in self.ranks:
            allowed = " or ".join(map(str, self.ranks))
            yield f"its first input has {len(shape)} axes, supported are {allowed}", "reshape the input"
        if self.static and not shape.is_static():
            yield "its first input must have a static shape", "export with static sizes for these dims"


def constant_of(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer or of a Constant node."""
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant":
        return None
    attribute = node.attributes.get("value")
    return attribute.as_tensor() if attribute is not None else ir.tensor([0])


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _last_size(value: ir.Value | None) -> int | ir.SymbolicDim | None:
    """The size of the last axis; 1 for a tensor without axes, None if the shape is unknown."""
    if value is None or value.shape is None:
        return None
    return value.shape[-1] if value.shape else 1


def _name(inputs: tuple[str, ...], index: int) -> str:
    return inputs[index] if index < len(inputs) else str(index)


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
