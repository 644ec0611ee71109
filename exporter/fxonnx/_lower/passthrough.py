"""Operators of custom domains: passthrough, for a runtime with kernels for them, and those of user translations."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import onnx_ir as ir
import torch

from fxonnx_translations._builder import dtypes
from fxonnx_translations._builder.op import Op, Unsupported
from fxonnx_translations._registry import Translation
from fxonnx_translations._suggestions import did_you_mean
from fxonnx_translations._torch_compat import OpOverload

__all__ = ["Passthrough", "as_input", "emit_custom"]

ATEN_DOMAIN = "org.pytorch.aten"


@dataclass(frozen=True)
class Passthrough:
    """Selection of the operators emitted as nodes of their own domain.

    Attributes:
        mode: Selects among operators whose namespace is not in ``opsets``: none; ``"aten"``, all ATen operators;
            ``"fallback"``, ATen operators without a translation; ``"fallthrough"``, all operators without one.
        opsets: Namespace, which is also the domain, to opset version. Their operators are never translated.
    """

    mode: Literal["none", "aten", "fallback", "fallthrough"] = "none"
    opsets: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def keeps(self, target: Any) -> bool:
        """Whether an operator is emitted as it is, neither decomposed nor translated."""
        if not isinstance(target, OpOverload):
            return False
        return target.namespace in self.opsets or (self.mode == "aten" and target.namespace == "aten")

    def misspelling(self, target: Any) -> str | None:
        """Return a note on a domain of ``opsets`` that is similar to the operator's namespace, or None."""
        for domain in self.opsets:
            hint = did_you_mean(domain, [target.namespace]) if isinstance(target, OpOverload) else None
            if hint is not None:
                return f"custom_opsets has the domain {domain!r}, {hint}"
        return None

    def translation(self, target: Any) -> Translation | None:
        """The translation that emits the operator as a node of its own domain; None if it is not passed through."""
        if not isinstance(target, OpOverload):
            return None
        namespace = target.namespace
        is_aten = namespace == "aten" and namespace not in self.opsets
        if not self.keeps(target) and not (self.mode == "fallthrough" or (self.mode == "fallback" and is_aten)):
            return None
        as_aten = is_aten and self.mode != "fallthrough"
        domain = ATEN_DOMAIN if is_aten else namespace
        function = functools.partial(
            _emit, target=target, domain=domain, version=self.opsets.get(namespace, 1), as_aten=as_aten
        )
        return Translation(function, (target,))


def _emit(op: Op, *, target: OpOverload, domain: str, version: int, as_aten: bool, **arguments: Any) -> Any:
    """Emit any operator: tensors and symbolic sizes become inputs in schema order, other arguments attributes."""
    inputs: list[ir.Value | None] = []
    attributes: dict[str, Any] = {}
    for parameter in target._schema.arguments:
        value = arguments.get(parameter.name, parameter.default_value)
        if _is_input(value, str(parameter.type)):
            inputs += [_as_operand(op, item) for item in (value if isinstance(value, list) else [value])]
        elif value is not None and value != []:
            attributes[parameter.name] = _as_attribute(value)
    while inputs and inputs[-1] is None:
        inputs.pop()
    name = str(target._schema.name).partition("::")[2]
    if as_aten:
        attributes |= {"operator": name, "overload_name": target._schema.overload_name}
        name = "ATen"
    results = [result.dtype for result in op.results]
    return op.verbatim(name, inputs, attributes, results, domain=domain, version=version)


def _is_input(value: Any, kind: str) -> bool:
    if "Tensor" in kind:
        return True
    values = value if isinstance(value, list) else [value]
    return any(not isinstance(item, _CONSTANTS) for item in values)


_CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _as_operand(op: Op, value: Any) -> ir.Value | None:
    if value is None or isinstance(value, ir.Value):
        return value
    if isinstance(value, int) or hasattr(value, "free_symbols"):
        return op.size(value)
    raise Unsupported(f"the argument {value!r} can be neither an input nor an attribute of a node")


def _as_attribute(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, torch.dtype):
        return int(dtypes.from_torch(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = [_as_attribute(item) for item in value]
        return [float(item) for item in items] if any(isinstance(item, float) for item in items) else items
    return value if isinstance(value, int | float | str) else str(value).removeprefix("torch.")


def as_input(op: Op, argument: Any) -> ir.Value | None:
    """The graph value of a value, tensor, number, list of numbers or size; None for an absent input."""
    if argument is None or isinstance(argument, ir.Value):
        return argument
    if isinstance(argument, (torch.Tensor, bool, int, float)):
        return op.const(torch.as_tensor(argument))
    if isinstance(argument, (list, tuple)) and all(isinstance(item, (int, float)) for item in argument):
        return op.const(torch.tensor(argument))
    return op.size(argument)


def emit_custom(
    op: Op,
    opsets: Mapping[str, int],
    operator: tuple[str, str],
    inputs: Sequence[Any],
    attributes: Mapping[str, Any],
    outputs: Sequence[ir.DataType | int | None],
) -> tuple[ir.Value, ...]:
    """Emit a custom operator.

    Args:
        op: The op object of the node.
        opsets: Opset versions of custom domains; 1 for domains that are not listed.
        operator: Domain and name.
        inputs: As for ``as_input``.
        attributes: The attributes.
        outputs: For each output its element type, or the position of the input whose type it has; None if neither is
            known, which torch's type replaces if the output is a result of the node.
    """
    domain, name = operator
    values = [as_input(op, value) for value in inputs]
    made = op.builder.emit_verbatim(name, values, attributes, len(outputs), domain, opsets.get(domain, 1))
    for value, rule in zip(made, outputs, strict=True):
        source = values[rule] if isinstance(rule, int) and rule < len(values) else None
        if isinstance(rule, ir.DataType):
            value.type = ir.TensorType(rule)
        elif source is not None:
            value.type = source.type
    return made
