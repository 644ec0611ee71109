"""The record of a target: what the runtime can run, and which graph it runs fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import onnx_ir as ir

from fxonnx_translations._opsets.ort_kernels import MISSING_KERNELS

from .kernel_table import KernelTable

__all__ = ["CPU_KERNELS", "TargetProfile"]

CPU_KERNELS = KernelTable("onnxruntime")


@dataclass(frozen=True)
class TargetProfile:
    """One runtime as data: ``export`` and ``check`` read nothing else about a target.

    Attributes:
        name: The value of the argument ``target``.
        runtime: The runtime in words, for messages.
        kernels: The operators and element types with kernels.
        default_opset: The opset that is exported unless the user specifies one.
        newest_opset: The newest opset that the runtime loads.
        domains: The operator domains that it knows, besides the default one.
        patterns: Fusion patterns to enable or disable by default, by name, for this target.
        falls_back_to_cpu: Whether ONNX Runtime's CPU execution provider runs the operators that ``kernels`` lacks.
    """

    name: str
    runtime: str
    kernels: KernelTable
    default_opset: int
    newest_opset: int
    domains: frozenset[str] = frozenset()
    patterns: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))
    falls_back_to_cpu: bool = False

    def has_kernel(
        self, op_type: str, dtype: ir.DataType, opset: int, *, variable: str | None = None, domain: str = ""
    ) -> bool:
        """Whether there is a kernel for an operator and an element type; see ``KernelTable.has_kernel``."""
        return self.kernels.has_kernel(op_type, dtype, opset, variable=variable, domain=domain)

    def missing_kernels(self, opset: int) -> Mapping[str, frozenset[ir.DataType]]:
        """Return the element types that the export computes in a wider type, between Casts, by operator.

        ONNX Runtime refuses a model with a node that no provider has a kernel for. Other runtimes choose the types they
        compute in themselves: their graphs have the Casts that the ONNX schema requires and no others.

        Args:
            opset: The opset of the export.
        """
        if not self.falls_back_to_cpu:
            return MappingProxyType({})
        if self.kernels == CPU_KERNELS:
            return MISSING_KERNELS
        return MappingProxyType(
            {
                op_type: frozenset(dtype for dtype in missing if not self.has_kernel(op_type, dtype, opset))
                for op_type, missing in MISSING_KERNELS.items()
            }
        )
