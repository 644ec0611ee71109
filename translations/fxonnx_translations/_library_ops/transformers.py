"""Operators that transformers defines for its mixtures of experts.

transformers need not be installed: operators are looked up by name.
"""

from __future__ import annotations

import onnx_ir as ir

from .._aten.linalg.matmul import rows_times_matrices
from .._builder.op import Op
from .._registry import translates


@translates("transformers::grouped_mm_fallback")
def grouped_mm(op: Op, input: ir.Value, weight: ir.Value, offs: ir.Value) -> ir.Value:
    """transformers::grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor"""
    return rows_times_matrices(op, input, weight, offs)
