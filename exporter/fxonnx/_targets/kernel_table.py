"""Tables of the operators and element types that a runtime has kernels for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from types import MappingProxyType

import onnx_ir as ir

__all__ = ["Kernel", "KernelTable", "since_version", "type_variable"]

_ONNX_NAMES = MappingProxyType({"float": "FLOAT", "double": "DOUBLE"})


@dataclass(frozen=True)
class Kernel:
    """Element types of one operator that a runtime computes, for a range of versions of the operator.

    Attributes:
        since: The first version of the operator.
        until: The last version. None: ``since`` is the newest version that the runtime knows.
        types: Type variable of the operator's schema to element types; variables that are left out are not restricted.
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
        version = since_version(op_type, opset, domain)
        return next((kernel for kernel in self.kernels.get((domain, op_type), ()) if kernel.covers(version)), None)

    def has_kernel(
        self, op_type: str, dtype: ir.DataType, opset: int, *, variable: str | None = None, domain: str = ""
    ) -> bool:
        """Whether there is a kernel for an operator and an element type.

        Args:
            op_type: The operator.
            dtype: Element type of the values that ``variable`` stands for.
            opset: Version of the operator's domain.
            variable: Type variable of the operator's schema; by default that of the first input with a choice of types.
            domain: The operator's domain.
        """
        kernel = self.find(op_type, opset, domain)
        if kernel is None:
            return False
        if variable is None:
            variable = type_variable(op_type, opset, domain)
        types = kernel.types.get(variable or "")
        return types is None or dtype in types


def _schema(op_type: str, opset: int, domain: str) -> object | None:
    import onnx.defs

    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


@cache
def since_version(op_type: str, opset: int, domain: str = "") -> int:
    """Return the opset that introduced the version of an operator that ``opset`` has; ``opset`` if onnx lacks it."""
    schema = _schema(op_type, opset, domain)
    return opset if schema is None else int(schema.since_version)  # type: ignore[attr-defined]


@cache
def type_variable(op_type: str, opset: int, domain: str = "") -> str | None:
    """Return the type variable of an operator's first input, or output, that may have several element types."""
    schema = _schema(op_type, opset, domain)
    if schema is None:
        return None
    for formal in (*schema.inputs, *schema.outputs):  # type: ignore[attr-defined]
        if len(formal.types) > 1:
            return str(formal.type_str)
    return None


def _read(name: str) -> tuple[str, Mapping[tuple[str, str], tuple[Kernel, ...]]]:
    text = resources.files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    content = json.loads(text)
    shared: dict[str, frozenset[ir.DataType]] = {}

    def types_of(text: str) -> frozenset[ir.DataType]:
        if text not in shared:
            shared[text] = frozenset(ir.DataType[_ONNX_NAMES.get(word, word.upper())] for word in text.split())
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
