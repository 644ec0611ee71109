"""Operators that transformers defines for its mixtures of experts.

transformers need not be installed: the translations apply to whoever defines the ``transformers`` operators.
"""

from __future__ import annotations

import onnx_ir as ir
import sympy

from .op import Op
from .registry import translates

INT64, BOOL = ir.DataType.INT64, ir.DataType.BOOL


@translates("transformers::grouped_mm_fallback")
def grouped_mm(op: Op, input: ir.Value, weight: ir.Value, offs: ir.Value) -> ir.Value:
    """transformers::grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor

    The rows of ``input`` [rows, in] up to the first offset times ``weight[0]`` [in, out], those up to the second one
    times ``weight[1]``, and so on; rows beyond the last offset give zeros.
    """
    rows, columns = op.result.shape
    dtype, experts = op.dtype_of(input), op.dims(weight)[0]
    ends = op.cast(offs, INT64)
    # What is done grows by the rows of one expert in each iteration.
    done, part = sympy.Symbol("rows_done"), sympy.Symbol("rows_of_expert")
    body = op.body("expert", [(INT64, ()), (BOOL, ()), (dtype, (done, columns)), (INT64, (1,))])
    number, going, product, begin = body.graph.inputs
    end = body.Gather(ends, body.Unsqueeze(number, [0]), axis=0)
    own = body.shaped(body.Slice(input, begin, end, [0]), (part, op.dims(input)[1]))
    own = body.shaped(body.MatMul(own, body.Gather(weight, number, axis=0)), (part, columns))
    grown = body.shaped(body.Concat(product, own, axis=0), (done + part, columns))
    graph = body.finish([(going, ()), (grown, (done + part, columns)), (end, (1,))])
    nothing = op.expand(op.const(0, dtype), [0, columns])
    last = op.multi(
        "Loop", op.scalar(experts, INT64), op.const(True), nothing, op.const([0], INT64), outputs=2, body=graph
    )
    product, end = last
    product.type, end.type = ir.TensorType(dtype), ir.TensorType(INT64)
    op.shaped(product, (done, columns))
    op.shaped(end, (1,))
    rest = op.Concat(op.const([0, 0], INT64), op.Sub(op.size(rows), end), op.const([0], INT64), axis=0)
    return op.shaped(op.Pad(product, rest), (rows, columns))
