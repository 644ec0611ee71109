"""Element types that an operator does not take, and the wider type it is computed in instead.

Two reasons: the ONNX schema of the target opset does not allow the type, or ONNX Runtime's CPU execution provider has no
kernel for it (``python -m benchmarks.kernel_probe`` prints what the installed version has; the table is that of 1.31).
Integers become wider integers and bfloat16 becomes float32: the same result after the cast back, or one rounded once.
float16 is left to ONNX Runtime, which inserts such casts itself where it has to, so that a GPU runs float16; float64 has
no wider type (``doubles.py`` has formulas for many operators).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from .._builder.op_schema import OpSchemaInfo

__all__ = ["MISSING_KERNELS", "TYPES_WITHOUT_SOME_KERNELS", "NoKernelError", "wider_type"]

_FLOAT, _DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE
_BFLOAT16, _FLOAT16, _BOOL = ir.DataType.BFLOAT16, ir.DataType.FLOAT16, ir.DataType.BOOL
_INT8, _INT16, _INT32, _INT64 = ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64
_UINT8, _UINT16, _UINT32, _UINT64 = ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64

_NO_BFLOAT16 = (
    "Abs Acos Acosh Add AffineGrid ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization Ceil "
    "CenterCropPad Clip Col2Im Conv ConvTranspose Cos Cosh CumProd CumSum DFT DeformConv DepthToSpace DequantizeLinear Det "
    "Div Dropout Elu Equal Erf Exp Expand EyeLike Floor GRU Gelu Gemm GlobalAveragePool GlobalMaxPool Greater "
    "GreaterOrEqual GridSample GroupNormalization HardSigmoid HardSwish Hardmax InstanceNormalization IsNaN LRN LSTM "
    "LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul Max MaxPool MaxUnpool Mean "
    "MeanVarianceNormalization Min Mish Mod Mul Neg NonZero PRelu Pad Pow QuantizeLinear RMSNormalization RNN Reciprocal "
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare "
    "Relu Resize RoiAlign RotaryEmbedding Round Selu Sigmoid Sin Sinh Size Softmax Softplus Softsign SpaceToDepth Sqrt Sub "
    "Sum Tan Tanh ThresholdedRelu Tile TopK Trilu Where"
)
_NO_DOUBLE = (
    "Acos Acosh Asin Asinh Atan Atanh AveragePool Col2Im Conv ConvTranspose Cosh Det Elu Erf Gelu GlobalAveragePool "
    "GlobalLpPool GlobalMaxPool HardSigmoid HardSwish Hardmax InstanceNormalization LRN LeakyRelu LpPool MaxRoiPool "
    "MaxUnpool Mean MeanVarianceNormalization Mish NonZero OneHot PRelu RNN Resize Selu Sinh Softplus Softsign Tan "
    "ThresholdedRelu"
)
_NO_INTEGER: Mapping[str, tuple[ir.DataType, ...]] = MappingProxyType(
    {
        "ArgMax": (_INT16, _UINT16, _UINT32, _UINT64),
        "ArgMin": (_INT16, _UINT16, _UINT32, _UINT64),
        "BitShift": (_UINT16,),
        "Clip": (_INT16, _UINT16),
        "CumSum": (_UINT32, _UINT64),
        "DepthToSpace": (_BOOL, _INT16, _INT32, _INT64, _UINT16, _UINT32, _UINT64),
        "Einsum": (_INT8, _INT16, _UINT8, _UINT16, _UINT32, _UINT64),
        "EyeLike": (_BOOL, _INT8, _INT16, _UINT8, _UINT16, _UINT32),
        "Gemm": (_INT32, _INT64, _UINT32, _UINT64),
        "GridSample": (_BOOL, _INT8, _INT16, _INT32, _INT64, _UINT8, _UINT16, _UINT32, _UINT64),
        "Max": (_INT16, _UINT16),
        "Min": (_INT16, _UINT16),
        "NonZero": (_INT8, _INT16, _UINT16, _UINT32, _UINT64),
        "OneHot": (_BOOL, _INT8, _INT16, _INT32, _UINT8, _UINT16, _UINT32, _UINT64),
        "PRelu": (_INT32, _INT64, _UINT32, _UINT64),
        "Pad": (_INT16, _UINT16),
        "Pow": (_INT8, _INT16, _UINT8, _UINT16, _UINT32, _UINT64),
        **dict.fromkeys(
            (
                "ReduceL1",
                "ReduceL2",
                "ReduceLogSum",
                "ReduceLogSumExp",
                "ReduceMax",
                "ReduceMean",
                "ReduceMin",
                "ReduceProd",
                "ReduceSum",
                "ReduceSumSquare",
            ),
            (_UINT32, _UINT64),
        ),
        "Relu": (_INT16, _INT64),
        "Resize": (_BOOL, _INT16, _INT64, _UINT16, _UINT32, _UINT64),
        "SpaceToDepth": (_BOOL, _INT16, _INT32, _INT64, _UINT16, _UINT32, _UINT64),
        "TopK": (_UINT16, _UINT32, _UINT64),
        "Trilu": (_INT8, _INT16, _UINT8, _UINT16, _UINT32, _UINT64),
        "Unique": (_BOOL, _INT16, _INT32, _UINT8, _UINT16, _UINT32, _UINT64),
        "Where": (_BOOL, _INT16, _UINT16, _UINT64),
    }
)


def _table() -> dict[str, frozenset[ir.DataType]]:
    bfloat16, double = frozenset(_NO_BFLOAT16.split()), frozenset(_NO_DOUBLE.split())
    return {
        name: frozenset(_NO_INTEGER.get(name, ()))
        | (frozenset({_BFLOAT16}) if name in bfloat16 else frozenset())
        | (frozenset({_DOUBLE}) if name in double else frozenset())
        for name in sorted({*_NO_INTEGER, *bfloat16, *double})
    }


MISSING_KERNELS: Mapping[str, frozenset[ir.DataType]] = MappingProxyType(_table())
"""Operator to the types for which there is no kernel, at no opset that allows them."""

_WIDER: Mapping[ir.DataType, tuple[ir.DataType, ...]] = MappingProxyType(
    {
        _BFLOAT16: (_FLOAT,),
        _FLOAT16: (_FLOAT,),
        _INT8: (_INT32, _INT64),
        _INT16: (_INT32, _INT64),
        _INT32: (_INT64,),
        _UINT8: (_INT32, _INT64),
        _UINT16: (_UINT32, _INT32, _INT64),
        _UINT32: (_INT64,),
        _BOOL: (_UINT8, _INT32, _INT64),
    }
)
# What these do with the bits of an unsigned number they do with those of a signed one; the others order the numbers.
_BITWISE = frozenset({"CumSum", "NonZero", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Trilu", "Where"})

TYPES_WITHOUT_SOME_KERNELS = frozenset({*_WIDER, _DOUBLE, _UINT64})
"""The types that some operator has no kernel for: values of the others need not be looked at."""


class NoKernelError(Exception):
    """There is neither a kernel nor a type to compute in instead."""


def wider_type(op_type: str, dtype: ir.DataType, variable: str, schema: OpSchemaInfo) -> ir.DataType | None:
    """The type to compute in when an operator does not take ``dtype``.

    Args:
        op_type: The operator, of ONNX's own domain.
        dtype: Type of an input.
        variable: The type variable that the input binds.
        schema: The operator's schema.

    Returns:
        None when the operator takes the type, or when its schema takes none that could stand for it.

    Raises:
        NoKernelError: When the schema allows the type, but there is no kernel for it.
    """
    if op_type == "Cast":
        return None
    allowed = schema.allowed.get(variable)
    missing = MISSING_KERNELS.get(op_type, frozenset())
    in_schema = allowed is None or dtype in allowed
    # A concrete type, such as that of a condition, is no choice.
    if in_schema and (dtype not in missing or allowed is None or len(allowed) == 1):
        return None
    for wider in _candidates(op_type, dtype):
        if (allowed is None or wider in allowed) and wider not in missing:
            return wider
    if in_schema:
        raise NoKernelError(f"ONNX Runtime has no kernel of {op_type} for {dtype.name}")
    return None


def _candidates(op_type: str, dtype: ir.DataType) -> tuple[ir.DataType, ...]:
    if op_type == "NonZero":
        return (_BOOL,)
    if dtype == _UINT64 and op_type in _BITWISE:
        return (_INT64,)
    return _WIDER.get(dtype, ())
