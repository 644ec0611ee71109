"""Element types that an operator does not take, and the wider type it is computed in instead.

Two reasons: the ONNX schema of the target opset does not allow the type, or ONNX Runtime's CPU execution provider has no
kernel for it (``python -m benchmarks.kernel_table`` prints what the installed version has; the table is that of 1.31).
Integers become wider integers and bfloat16 becomes float32: the same result after the cast back, or one rounded once.
float16 is left to ONNX Runtime, which inserts such casts itself where it has to, so that a GPU runs float16; float64 has
no wider type.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from .opschema import OpFacts

__all__ = ["NARROW", "NO_KERNEL", "wider_type"]

_BFLOAT16, _FLOAT16, _BOOL = ir.DataType.BFLOAT16, ir.DataType.FLOAT16, ir.DataType.BOOL
_INT8, _INT16, _INT32, _INT64 = ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64
_UINT8, _UINT16, _UINT32, _UINT64 = ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64
_FLOAT = ir.DataType.FLOAT

_BFLOAT16_MISSING = (
    "Abs Acos Acosh Add ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization Ceil Clip Conv "
    "ConvTranspose Cos Cosh CumSum DepthToSpace Div Dropout Elu Equal Erf Exp Expand Floor GRU Gelu Gemm "
    "GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample HardSigmoid Hardmax InstanceNormalization IsNaN "
    "LSTM LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization MatMul Max MaxPool Mean Min Mod Mul Neg NonZero PRelu "
    "Pad Pow RMSNormalization RNN Reciprocal ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare Relu Resize RoiAlign RotaryEmbedding Round Selu Sigmoid Sin Sinh Softmax Softplus Softsign "
    "SpaceToDepth Sqrt Sub Sum Tan Tanh ThresholdedRelu Tile Trilu Where"
)

_INTEGERS_MISSING: Mapping[str, tuple[ir.DataType, ...]] = MappingProxyType(
    {
        "ArgMax": (_INT16, _UINT16, _UINT32, _UINT64),
        "ArgMin": (_INT16, _UINT16, _UINT32, _UINT64),
        "BitShift": (_UINT16,),
        "Clip": (_INT16, _UINT16),
        "CumSum": (_UINT32, _UINT64),
        "Max": (_INT16, _UINT16),
        "Min": (_INT16, _UINT16),
        "NonZero": (_INT8, _INT16, _UINT16, _UINT32, _UINT64),
        "Pad": (_INT16, _UINT16),
        "Relu": (_INT16, _INT64),
        "Resize": (_INT16, _UINT16),
        "TopK": (_UINT16, _UINT32),
        "Trilu": (_INT8, _INT16, _UINT8, _UINT16, _UINT32, _UINT64),
        "Where": (_INT16, _UINT16, _UINT64, _BOOL),
    }
)

NO_KERNEL: Mapping[str, frozenset[ir.DataType]] = MappingProxyType(
    {
        op_type: frozenset((*_INTEGERS_MISSING.get(op_type, ()), *((_BFLOAT16,) if bfloat16 else ())))
        for op_type, bfloat16 in {
            **dict.fromkeys(_INTEGERS_MISSING, False),
            **dict.fromkeys(_BFLOAT16_MISSING.split(), True),
        }.items()
    }
)
"""Operator to the types for which there is no kernel."""

_WIDER: Mapping[ir.DataType, tuple[ir.DataType, ...]] = MappingProxyType(
    {
        _BFLOAT16: (_FLOAT,),
        _FLOAT16: (_FLOAT,),
        _INT8: (_INT32, _INT64),
        _INT16: (_INT32, _INT64),
        _UINT8: (_INT32, _INT64),
        _UINT16: (_UINT32, _INT32, _INT64),
        _UINT32: (_INT64,),
        # What these operators do with the bits of unsigned 64-bit numbers they do with those of signed ones.
        _UINT64: (_INT64,),
        _BOOL: (_UINT8, _INT32),
    }
)

NARROW = frozenset(_WIDER)
"""The types that have a wider one."""


def wider_type(op_type: str, dtype: ir.DataType, variable: str, facts: OpFacts) -> ir.DataType | None:
    """The type to compute in when an operator does not take ``dtype``, or None when it does or nothing helps."""
    allowed = facts.allowed.get(variable)
    missing = NO_KERNEL.get(op_type, frozenset())
    in_schema = allowed is None or dtype in allowed
    if in_schema and dtype not in missing:
        return None
    for wider in _WIDER.get(dtype, ()):
        if (allowed is None or wider in allowed) and wider not in missing:
            return wider
    return None
