"""Missing kernels: element types that an operator is computed in a wider type for.

The ONNX schema of the target opset does not allow the type, or ONNX Runtime's CPU execution provider has no kernel for it
(table of version 1.31; ``python -m benchmarks.kernel_probe`` prints that of the installed one). Integers become wider
integers and bfloat16 becomes float32: after the cast back the result is the same, or rounded once. float16 is left to
ONNX Runtime, which inserts such casts where necessary, so that a GPU computes in float16. float64 has no wider type:
``float64_kernels`` decomposes many operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from .._builder.dtypes import FLOAT8, FLOAT8E8M0, SUB_BYTE_INTEGERS
from .._builder.op_schema import OpSchemaInfo

__all__ = ["MISSING_KERNELS", "TYPES_WITHOUT_SOME_KERNELS", "NoKernelError", "wider_type", "wider_types"]

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


_NO_NARROW: Mapping[str, frozenset[ir.DataType]] = MappingProxyType(
    {
        "Identity": SUB_BYTE_INTEGERS | {FLOAT8E8M0},
        "Reshape": SUB_BYTE_INTEGERS | {FLOAT8E8M0},
        "Shape": SUB_BYTE_INTEGERS | {FLOAT8E8M0},
        "Transpose": frozenset({FLOAT8E8M0}),
        "DequantizeLinear": frozenset({ir.DataType.FLOAT4E2M1}),
        **dict.fromkeys(("Flatten", "Pad", "Size", "Squeeze", "Unsqueeze"), SUB_BYTE_INTEGERS | FLOAT8 | {FLOAT8E8M0}),
    }
)


def _table() -> dict[str, frozenset[ir.DataType]]:
    bfloat16, double = frozenset(_NO_BFLOAT16.split()), frozenset(_NO_DOUBLE.split())
    return {
        name: frozenset(_NO_INTEGER.get(name, ()))
        | _NO_NARROW.get(name, frozenset())
        | (frozenset({_BFLOAT16}) if name in bfloat16 else frozenset())
        | (frozenset({_DOUBLE}) if name in double else frozenset())
        for name in sorted({*_NO_INTEGER, *_NO_NARROW, *bfloat16, *double})
    }


MISSING_KERNELS: Mapping[str, frozenset[ir.DataType]] = MappingProxyType(_table())
"""Operator to the element types that have a kernel at none of the opsets that allow them."""

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
        **dict.fromkeys((*FLOAT8, FLOAT8E8M0), (_FLOAT,)),
        **{dtype: (_INT8 if dtype.is_signed() else _UINT8, _INT32, _INT64) for dtype in SUB_BYTE_INTEGERS},
    }
)
# Their results have the same bits for signed and unsigned integers; other operators depend on the order of the numbers.
_BITWISE = frozenset({"CumSum", "NonZero", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Trilu", "Where"})

TYPES_WITHOUT_SOME_KERNELS = frozenset({*_WIDER, _DOUBLE, _UINT64})
"""The element types that some operator has no kernel for: only their values need a lookup."""


class NoKernelError(Exception):
    """An operator has no kernel for an element type, nor for a wider one."""


def wider_type(
    op_type: str,
    dtype: ir.DataType,
    variable: str,
    schema: OpSchemaInfo,
    missing_kernels: Mapping[str, frozenset[ir.DataType]] = MISSING_KERNELS,
) -> ir.DataType | None:
    """Return the wider type to compute in if an operator does not accept ``dtype``.

    Args:
        op_type: The operator, of the default domain.
        dtype: Type of an input.
        variable: The type variable that the input binds.
        schema: The operator's schema.
        missing_kernels: Operator to the element types that the target has no kernel for.

    Returns:
        None if the operator accepts the type, or if its schema allows no wider one.

    Raises:
        NoKernelError: If the schema allows the type, but neither it nor a wider one has a kernel.
    """
    if op_type == "Cast":
        return None
    allowed = schema.allowed.get(variable)
    missing = missing_kernels.get(op_type, frozenset())
    in_schema = allowed is None or dtype in allowed
    # A concrete type, such as a condition's, cannot be replaced.
    if in_schema and (dtype not in missing or allowed is None or len(allowed) == 1):
        return None
    for wider in wider_types(op_type, dtype):
        if (allowed is None or wider in allowed) and wider not in missing:
            return wider
    if in_schema:
        raise NoKernelError(f"ONNX Runtime has no kernel of {op_type} for {dtype.name}")
    return None


def wider_types(op_type: str, dtype: ir.DataType) -> tuple[ir.DataType, ...]:
    """Return the wider types in which an operator without a kernel for an element type is computed, the preferred first."""
    if op_type == "NonZero":
        return (_BOOL, _FLOAT)
    if dtype == _UINT64 and op_type in _BITWISE:
        return (_INT64,)
    return _WIDER.get(dtype, ())
