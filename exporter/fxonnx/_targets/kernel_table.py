"""Tables of the operators and element types that a runtime has kernels for."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

__all__ = ["FormalParameters", "Kernel", "KernelTable", "formal_parameters"]

_ONNX_NAMES = MappingProxyType({"float": "FLOAT", "double": "DOUBLE"})


@dataclass(frozen=True)
class Kernel:
    """Element types of one operator that a runtime computes, for a range of versions of the operator.

    Attributes:
        since: The first version of the operator.
        until: The last version. None: ``since`` is the newest version that the runtime knows.
        types: Type variable of the operator's schema to element types; ``*`` is the variable of the first input.
            Variables that are omitted are not restricted.
    """

    since: int
    until: int | None
    types: Mapping[str, frozenset[ir.DataType]]

    def covers(self, version: int) -> bool:
        """Whether it computes a version of the operator; an open range ends with the newest known version."""
        return version == self.since if self.until is None else self.since <= version <= self.until


@dataclass(frozen=True)
class KernelTable:
    """The kernels of one runtime, read from the JSON file of that name on first use.

    ``benchmarks/target_kernels.py`` writes the files.

    Args:
        name: Name of the file in this package, without the extension.
    """

    name: str

    @property
    def source(self) -> str:
        """The runtime, its version and where the table comes from."""
        return self._content[0]

    @property
    def kernels(self) -> Mapping[tuple[str, str], tuple[Kernel, ...]]:
        """Domain and operator to its kernels."""
        return self._content[1]

    @cached_property
    def _content(self) -> tuple[str, Mapping[tuple[str, str], tuple[Kernel, ...]]]:
        return _read(self.name)

    def find(self, op_type: str, opset: int, domain: str = "") -> Kernel | None:
        """Return the kernel for an operator as an opset defines it, or None if there is none.

        Args:
            op_type: The operator.
            opset: Version of the operator's domain.
            domain: The operator's domain.
        """
        version = formal_parameters(op_type, opset, domain).since
        return next((kernel for kernel in self.kernels.get((domain, op_type), ()) if kernel.covers(version)), None)

    def has_kernel(
        self, op_type: str, dtype: ir.DataType, opset: int, *, variable: str | None = None, domain: str = ""
    ) -> bool:
        """Whether there is a kernel for an operator and an element type.

        Args:
            op_type: The operator.
            dtype: Element type of the values that ``variable`` stands for.
            opset: Version of the operator's domain.
            variable: Type variable of the operator's schema; by default of the first input with a choice of types.
            domain: The operator's domain.
        """
        kernel = self.find(op_type, opset, domain)
        if kernel is None:
            return False
        if variable is None:
            variable = formal_parameters(op_type, opset, domain).type_variable
        # onnx has no schemas of com.microsoft, where the variable of the activations is T.
        types = kernel.types.get(variable or "T", kernel.types.get("*"))
        return types is None or dtype in types


@dataclass(frozen=True)
class Formal:
    """An input or output of an operator: its name and type variable, and its element type if it has no choice."""

    name: str
    variable: str
    only_type: ir.DataType | None


@dataclass(frozen=True)
class FormalParameters:
    """The schema of an operator at an opset.

    Attributes:
        since: The opset that introduced this version of the operator.
        inputs: Its inputs; the last one may be variadic.
        outputs: Its outputs.
    """

    since: int
    inputs: tuple[Formal, ...] = ()
    outputs: tuple[Formal, ...] = ()

    @property
    def type_variable(self) -> str:
        """The type variable of the first input, or output, that may have several element types; ``""`` if none has."""
        return next((formal.variable for formal in (*self.inputs, *self.outputs) if formal.only_type is None), "")


@cache
def formal_parameters(op_type: str, opset: int, domain: str = "") -> FormalParameters:
    """Return the schema of an operator; without inputs and outputs if onnx does not know the operator."""
    import onnx.defs

    try:
        schema: Any = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return FormalParameters(opset)

    def formals(parameters: Any) -> tuple[Formal, ...]:
        return tuple(Formal(each.name, each.type_str, _only_type(each.types)) for each in parameters)

    return FormalParameters(int(schema.since_version), formals(schema.inputs), formals(schema.outputs))


def _only_type(texts: Collection[str]) -> ir.DataType | None:
    """The element type, if there is one only and it is a tensor's."""
    (text, *others) = texts
    return None if others or not text.startswith("tensor(") else _data_type(text[7:-1])


def _data_type(text: str) -> ir.DataType:
    return ir.DataType[_ONNX_NAMES.get(text, text.upper())]


def _read(name: str) -> tuple[str, Mapping[tuple[str, str], tuple[Kernel, ...]]]:
    content = json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))
    shared: dict[str, frozenset[ir.DataType]] = {}

    def types_of(text: str) -> frozenset[ir.DataType]:
        if text not in shared:
            shared[text] = frozenset(map(_data_type, text.split()))
        return shared[text]

    kernels = {
        (domain, op_type): tuple(
            Kernel(since, until, MappingProxyType({variable: types_of(text) for variable, text in types.items()}))
            for since, until, types in versions
        )
        for domain, operators in content["kernels"].items()
        for op_type, versions in operators.items()
    }
    return content["source"], MappingProxyType(kernels)
