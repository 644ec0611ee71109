"""Matrix products, einsum and grouped matmul."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir
import sympy
import torch

from ..._builder.dtypes import BOOL, INT64, held
from ..._builder.loops import arange
from ..._builder.op import Op, Operand, Unsupported
from ..._builder.stored_codes import transposed_dequantization
from ..._builder.symbolic_dims import Dim
from ..._registry import OpCall, translates
from ..indexing.slicing import diagonal_of
from ..view import swapped

# ---- products


@translates("aten::linear")
def linear(op: Op, input: ir.Value, weight: ir.Value, bias: ir.Value | None = None) -> ir.Value:
    """aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"""
    # Gemm accepts integers, but ONNX Runtime has no kernels for them.
    if op.rank_of(input) == 2 and op.rank_of(weight) == 2 and op.is_float(input):
        # ONNX Runtime dequantizes rows faster than columns, where it does not fuse the Gemm of quantized activations.
        columns = None if _is_dequantized(input) else transposed_dequantization(op.builder, weight, [1, 0])
        if columns is not None:
            return op.Gemm(input, columns, bias) if bias is not None else op.MatMul(input, columns)
        return op.Gemm(input, weight, bias, transB=1) if bias is not None else op.Gemm(input, weight, transB=1)
    if op.rank_of(weight) == 1:
        product = op.MatMul(input, weight)
    else:
        # Storing the transpose saves a node; a weight with other uses is transposed at run time instead.
        transposed = op.derived(weight, "transposed", torch.t)
        product = op.MatMul(input, op.Transpose(weight, perm=[1, 0]) if transposed is None else transposed)
    return product if bias is None else op.Add(product, bias)


def _is_dequantized(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


@translates("aten::matmul")
def matmul(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::matmul(Tensor self, Tensor other) -> Tensor"""
    return op.MatMul(self, other)


@translates("aten::mm")
def mm(op: Op, self: ir.Value, mat2: ir.Value) -> ir.Value:
    """aten::mm(Tensor self, Tensor mat2) -> Tensor"""
    return op.MatMul(self, mat2)


@translates("aten::bmm")
def bmm(op: Op, self: ir.Value, mat2: ir.Value) -> ir.Value:
    """aten::bmm(Tensor self, Tensor mat2) -> Tensor"""
    return op.MatMul(self, mat2)


@translates("aten::mv")
def mv(op: Op, self: ir.Value, vec: ir.Value) -> ir.Value:
    """aten::mv(Tensor self, Tensor vec) -> Tensor"""
    return op.MatMul(self, vec)


@translates("aten::dot")
def dot(op: Op, self: ir.Value, tensor: ir.Value) -> ir.Value:
    """aten::dot(Tensor self, Tensor tensor) -> Tensor"""
    return op.MatMul(self, tensor)


@translates("aten::outer")
def outer(op: Op, self: ir.Value, vec2: ir.Value) -> ir.Value:
    """aten::outer(Tensor self, Tensor vec2) -> Tensor"""
    left, right = op.promote(self, vec2)
    return op.Mul(op.Unsqueeze(left, [1]), right)


# ---- products added to a tensor


def _scaled(op: Op, value: ir.Value, factor: Operand) -> ir.Value:
    return value if factor == 1 else op.Mul(value, op.operand(factor, op.dtype_of(value)))


def sum_of_products(op: Op, self: ir.Value, product: ir.Value, beta: Operand, alpha: Operand) -> ir.Value:
    """beta * self + alpha * product in the result's type; beta == 0 ignores self, including NaN."""
    total = _scaled(op, product, alpha)
    total = op.expand(total, op.result.shape) if beta == 0 else op.Add(_scaled(op, self, beta), total)
    return op.cast(total, op.result.dtype)


def wide(op: Op, *values: ir.Value) -> tuple[ir.Value, ...]:
    """Half types as float32: torch rounds once, after the last step."""
    half = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return tuple(op.cast(value, ir.DataType.FLOAT) if op.dtype_of(value) in half else value for value in values)


@translates("aten::addmm")
def addmm(op: Op, self: ir.Value, mat1: ir.Value, mat2: ir.Value, beta: Operand = 1, alpha: Operand = 1) -> ir.Value:
    """aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    if op.dims(mat1)[1] == 0:
        # ONNX Runtime's Gemm ignores beta if the product has no terms.
        return op.expand(_scaled(op, self, beta), op.result.shape)
    if op.is_float(self) and isinstance(beta, (int, float)) and isinstance(alpha, (int, float)) and beta != 0:
        return op.Gemm(mat1, mat2, self, alpha=float(alpha), beta=float(beta))
    return sum_of_products(op, self, op.MatMul(mat1, mat2), beta, alpha)


@translates("aten::addmv")
def addmv(op: Op, self: ir.Value, mat: ir.Value, vec: ir.Value, beta: Operand = 1, alpha: Operand = 1) -> ir.Value:
    """aten::addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return sum_of_products(op, self, op.MatMul(mat, vec), beta, alpha)


@translates("aten::baddbmm")
def baddbmm(
    op: Op, self: ir.Value, batch1: ir.Value, batch2: ir.Value, beta: Operand = 1, alpha: Operand = 1
) -> ir.Value:
    """aten::baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    base, left, right = wide(op, self, batch1, batch2)
    return sum_of_products(op, base, op.MatMul(left, right), beta, alpha)


@translates("aten::addbmm")
def addbmm(
    op: Op, self: ir.Value, batch1: ir.Value, batch2: ir.Value, beta: Operand = 1, alpha: Operand = 1
) -> ir.Value:
    """aten::addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    product = op.MatMul(*wide(op, batch1, batch2))
    (base,) = wide(op, self)
    return sum_of_products(op, base, op.without_negative_zeros(op.ReduceSum(product, [0], keepdims=0)), beta, alpha)


@translates("aten::_trilinear")
def _trilinear(
    op: Op,
    i1: ir.Value,
    i2: ir.Value,
    i3: ir.Value,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> ir.Value:
    """aten::_trilinear(Tensor i1, Tensor i2, Tensor i3, int[] expand1, int[] expand2, int[] expand3, int[] sumdim, int unroll_dim=1) -> Tensor"""
    factors: list[ir.Value] = []
    for value, axes in ((i1, expand1), (i2, expand2), (i3, expand3)):
        factors.extend(wide(op, op.Unsqueeze(value, sorted(axes)) if axes else value))
    product = op.Mul(op.Mul(factors[0], factors[1]), factors[2])
    total = op.ReduceSum(product, sorted(sumdim), keepdims=0) if sumdim else product
    return op.cast(total, op.result.dtype)


def _only_half(call: OpCall) -> str | None:
    is_half = call.arguments["self"].dtype in (torch.float16, torch.bfloat16)
    # The decomposition asks for the values of factors.
    are_known = all(isinstance(call.arguments[name], (bool, int, float)) for name in ("beta", "alpha"))
    return "only half precision rounds each step" if are_known and not is_half else None


@translates("aten::addr", accepts=_only_half)
def addr(op: Op, self: ir.Value, vec1: ir.Value, vec2: ir.Value, beta: Operand = 1, alpha: Operand = 1) -> ir.Value:
    """aten::addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    dtype = op.result.dtype
    base, left, right = (op.cast(value, dtype) for value in (self, vec1, vec2))
    product = op.Mul(op.Unsqueeze(_scaled(op, left, alpha), [1]), right)
    # A beta that is rounded to zero ignores self as well.
    is_zero = isinstance(beta, (int, float)) and not held(beta, dtype)
    return product if is_zero else op.Add(_scaled(op, base, beta), product)


# ---- einsum


_EINSUM_SINCE = 12
_DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Element types with an Einsum kernel in ONNX Runtime, without integers, whose sums are INT64 in torch."""


@dataclass(frozen=True)
class Term:
    """An operand of an equation.

    Attributes:
        parts: The tensor; of a complex one, the real and the imaginary part.
        labels: The label of each axis.
    """

    parts: tuple[ir.Value, ...]
    labels: str

    def sizes(self, op: Op) -> dict[str, Dim]:
        """Return the size of each label."""
        return dict(zip(self.labels, op.dims(self.parts[0]), strict=True))

    def changed(self, labels: str, change: Callable[[ir.Value], ir.Value]) -> Term:
        """Return the term with other labels, after a change of each part."""
        return Term(tuple(map(change, self.parts)), labels)


@dataclass(frozen=True)
class _Product:
    """A batched matrix product of two operands.

    Attributes:
        flip_left: Whether to transpose the last two axes of the first operand.
        flip_right: Whether to transpose the second operand's.
        flip_result: Whether to transpose the result's.
    """

    flip_left: bool
    flip_right: bool
    flip_result: bool


def read_equation(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the labels of the operands and of the result, with labels for the axes of an ellipsis."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    counts = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    unused = [label for label in string.ascii_letters if label not in equation]
    most = max((count for term, count in zip(terms, counts, strict=True) if "..." in term), default=0)
    if most > len(unused):
        raise Unsupported(f"an equation with {len(unused)} labels left for the {most} axes of its ellipsis")
    covered = "".join(unused[:most])
    if not arrow:
        labels = inputs.replace(",", "").replace("...", "")
        output = "..." + "".join(label for label in sorted(set(labels)) if labels.count(label) == 1)
    named = [
        term.replace("...", covered[most - count :] if count else "") for term, count in zip(terms, counts, strict=True)
    ]
    return named, output.replace("...", covered)


def _product(terms: Sequence[str], output: str) -> _Product | None:
    """Return the batched matrix product that an equation of two operands describes, if it describes one."""
    left, right = terms
    lead = output[:-2]
    if len(output) < 2 or not all(len(term) == len(output) and term.startswith(lead) for term in (left, right)):
        return None
    a, b, c, d, i, j = (*left[-2:], *right[-2:], *output[-2:])
    shared = {a, b} & {c, d}
    if len({*lead, a, b, c, d}) != len(lead) + 3 or len(shared) != 1:
        return None
    (summed,) = shared
    row, column = (b if a == summed else a), (d if c == summed else c)
    if {i, j} != {row, column}:
        return None
    return _Product(flip_left=a == summed, flip_right=d == summed, flip_result=(i, j) == (column, row))


@translates("aten::einsum")
def einsum(op: Op, equation: str, tensors: Sequence[ir.Value], path: Sequence[int] | None = None) -> ir.Value:
    """aten::einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor"""
    labels, output = read_equation(equation, [op.rank_of(tensor) for tensor in tensors])
    terms = simple_terms(op, [Term((tensor,), term) for tensor, term in zip(tensors, labels, strict=True)])
    values = [term.parts[0] for term in terms]
    labels = [term.labels for term in terms]
    if len({op.dtype_of(value) for value in values}) == 1:
        product = _product(labels, output) if len(terms) == 2 and op.is_float(values[0]) else None
        if product is not None:
            return _matrix_product(op, product, *values)
        if len(terms) > 1 and op.opset >= _EINSUM_SINCE and op.dtype_of(values[0]) in _DTYPES:
            return op.Einsum(*values, equation=f"{','.join(labels)}->{output}")
    terms = [term.changed(term.labels, lambda value: op.cast(value, op.result.dtype)) for term in terms]
    return op.cast(contracted(op, terms, output, path).parts[0], op.result.dtype)


def _matrix_product(op: Op, product: _Product, left: ir.Value, right: ir.Value) -> ir.Value:
    if product.flip_result:
        # The transpose of a product is the product of the transposes in reverse order.
        left, right = (
            right if product.flip_right else swapped(op, right, -2, -1),
            left if product.flip_left else swapped(op, left, -2, -1),
        )
        return op.MatMul(left, right)
    left = swapped(op, left, -2, -1) if product.flip_left else left
    return op.MatMul(left, swapped(op, right, -2, -1) if product.flip_right else right)


def simple_terms(op: Op, terms: Sequence[Term]) -> list[Term]:
    """Return operands in which each label is one axis, of the same size in all operands.

    torch broadcasts axes of one element, ONNX does not; it takes the diagonal of axes with one label.
    """
    terms = [_without_repeated_labels(op, term) for term in terms]
    sizes = [term.sizes(op) for term in terms]
    broadcast = {label for each in sizes for label, size in each.items() if size != 1}
    return [
        _without_axes(op, term, [label for label, size in each.items() if size == 1 and label in broadcast])
        for term, each in zip(terms, sizes, strict=True)
    ]


def _without_repeated_labels(op: Op, term: Term) -> Term:
    while True:
        repeated = next((label for label in term.labels if term.labels.count(label) > 1), None)
        if repeated is None:
            return term
        axes = [axis for axis, label in enumerate(term.labels) if label == repeated][:2]
        size = op.dims(term.parts[0])[axes[0]]
        rest = "".join(label for axis, label in enumerate(term.labels) if axis not in axes)
        term = replace(
            term, labels=rest + repeated, parts=tuple(diagonal_of(op, part, axes, size) for part in term.parts)
        )


def _without_axes(op: Op, term: Term, dropped: Collection[str]) -> Term:
    if not dropped:
        return term
    axes = [term.labels.index(label) for label in dropped]
    return term.changed(_without(term.labels, dropped), lambda part: op.Squeeze(part, axes))


def _without(labels: str, dropped: Collection[str]) -> str:
    return "".join(label for label in labels if label not in dropped)


def contracted(op: Op, terms: Sequence[Term], output: str, path: Sequence[int] | None) -> Term:
    """Multiply the operands, two at a time, and return the sum over the labels that the result does not have.

    Args:
        op: The op object.
        terms: The operands, in which each label is one axis.
        output: The labels of the result.
        path: The positions of the operands to multiply next, two for each product, which becomes the last operand.
    """
    pending = list(terms)
    steps = list(zip(path[::2], path[1::2], strict=True)) if path else [(0, 1)] * (len(pending) - 1)
    for first, second in steps:
        left, right = pending[first], pending[second]
        pending = [term for index, term in enumerate(pending) if index not in (first, second)]
        product = _product_of_two(op, left, right, "".join([output, *(term.labels for term in pending)]))
        # Without a path, the product is the next operand.
        pending = [*pending, product] if path else [product, *pending]
    (term,) = pending
    term = _summed(op, term, output)
    return _ordered(op, term, output)


def _summed(op: Op, term: Term, kept: str) -> Term:
    """Return the sum over all labels that are not kept."""
    axes = [axis for axis, label in enumerate(term.labels) if label not in kept]
    if not axes:
        return term
    labels = "".join(label for label in term.labels if label in kept)
    dtype = op.dtype_of(term.parts[0])

    def total(part: ir.Value) -> ir.Value:
        return op.cast(op.without_negative_zeros(op.ReduceSum(*wide(op, part), axes, keepdims=0)), dtype)

    return term.changed(labels, total)


def _ordered(op: Op, term: Term, labels: str) -> Term:
    perm = [term.labels.index(label) for label in labels]
    return term.changed(labels, lambda part: op.Transpose(part, perm=perm))


def _product_of_two(op: Op, left: Term, right: Term, kept: str) -> Term:
    """Return the product of two operands, summed over the labels of both that are not kept."""
    left, right = _summed(op, left, kept + right.labels), _summed(op, right, kept + left.labels)
    both = [label for label in left.labels if label in right.labels]
    batch = "".join(label for label in both if label in kept)
    inner = "".join(label for label in both if label not in kept)
    rows, columns = _without(left.labels, both), _without(right.labels, both)
    sizes = {**right.sizes(op), **left.sizes(op)}

    def length(labels: str) -> Dim:
        return math.prod(sizes[label] for label in labels)

    lead = [sizes[label] for label in batch]
    # A batch of matrices: of rows and inner labels, and of inner labels and columns.
    matrices = _flattened(op, _ordered(op, left, batch + rows + inner), [*lead, length(rows), length(inner)])
    others = _flattened(op, _ordered(op, right, batch + inner + columns), [*lead, length(inner), length(columns)])
    product = multiplied(op, op.MatMul if inner else op.Mul, matrices, others)
    labels = batch + rows + columns
    return Term(_flattened(op, Term(product, labels), [sizes[label] for label in labels]), labels)


def _flattened(op: Op, term: Term, dims: Sequence[Dim]) -> tuple[ir.Value, ...]:
    return tuple(part if op.dims(part) == tuple(dims) else op.reshape(part, dims) for part in term.parts)


def multiplied(
    op: Op,
    product: Callable[[ir.Value, ir.Value], ir.Value],
    left: tuple[ir.Value, ...],
    right: tuple[ir.Value, ...],
) -> tuple[ir.Value, ...]:
    """Return the parts of a bilinear product of two operands, by products of their parts."""
    if len(left) == 1 or len(right) == 1:
        return tuple(product(one, other) for one in left for other in right)
    (a, b), (c, d) = left, right
    return op.Sub(product(a, c), product(b, d)), op.Add(product(a, d), product(b, c))


# ---- grouped products


def rows_times_matrices(op: Op, rows: ir.Value, matrices: ir.Value, offs: ir.Value) -> ir.Value:
    """Grouped matrix product: the rows up to the first offset times the first matrix, and so on.

    Args:
        op: The op object.
        rows: [rows, in].
        matrices: [groups, in, out].
        offs: [groups], the end of each group of rows.

    Returns:
        [rows, out]; rows after the last offset are zero.
    """
    count, columns = op.dims(rows)[0], op.dims(matrices)[2]
    dtype, groups = op.dtype_of(rows), op.dims(matrices)[0]
    ends = op.cast(offs, INT64)
    bounds = op.shaped(op.Concat(op.const([0], INT64), ends, axis=0), (groups + 1,))
    # Only groups with rows are multiplied: a token of a mixture of experts has a few of many.
    has_rows = op.Less(op.shaped(op.Slice(bounds, [0], [-1], [0]), (groups,)), ends)
    numbers = op.Reshape(op.NonZero(has_rows), [-1])
    # Each iteration adds the rows of one group to the finished part.
    done, part = sympy.Symbol("rows_done"), sympy.Symbol("rows_of_group")
    body = op.body("group", [(INT64, ()), (BOOL, ()), (dtype, (done, columns))])
    iteration, going, product = body.graph.inputs
    number = body.Gather(numbers, body.Unsqueeze(iteration, [0]), axis=0)
    begin, end = (body.Gather(bounds, index, axis=0) for index in (number, body.Add(number, body.const([1], INT64))))
    own = body.shaped(body.Slice(rows, begin, end, [0]), (part, op.dims(rows)[1]))
    matrix = body.Squeeze(body.Gather(matrices, number, axis=0), [0])
    own = body.shaped(body.MatMul(own, matrix), (part, columns))
    grown = body.shaped(body.Concat(product, own, axis=0), (done + part, columns))
    graph = body.finish([(going, ()), (grown, (done + part, columns))])
    nothing = op.expand(op.const(0, dtype), [0, columns])
    product = op.Loop(op.Size(numbers), op.const(True), nothing, body=graph)
    product.type = ir.TensorType(dtype)
    # Other products have other numbers of rows: with the same name, ONNX Runtime would reuse their memory.
    op.shaped(product, (sympy.Symbol(f"{product.name}_rows"), columns))
    rest = op.Concat(
        op.const([0, 0], INT64),
        op.Sub(op.size(count), op.Slice(bounds, [-1], [2**62], [0])),
        op.const([0], INT64),
        axis=0,
    )
    return op.shaped(op.Pad(product, rest), (count, columns))


@translates("aten::_grouped_mm")
def grouped_mm(
    op: Op,
    self: ir.Value,
    mat2: ir.Value,
    offs: ir.Value | None = None,
    bias: ir.Value | None = None,
    out_dtype: torch.dtype | None = None,
) -> ir.Value:
    """aten::_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor"""
    if bias is not None:
        raise Unsupported("_grouped_mm with a bias, which torch itself does not compute")
    # Products of half types are summed in float32 and rounded once.
    left, right = (op.cast(value, ir.DataType.FLOAT) for value in (self, mat2))
    if offs is None:
        product = op.MatMul(left, right)
    elif op.rank_of(right) == 3:
        product = rows_times_matrices(op, left, right, offs)
    elif op.rank_of(left) == 3:
        # Groups of columns are groups of rows of the transpose.
        columns, matrices = op.Transpose(right, perm=[1, 0]), op.Transpose(left, perm=[0, 2, 1])
        product = op.Transpose(rows_times_matrices(op, columns, matrices, offs), perm=[1, 0])
    else:
        product = _sums_over_groups(op, left, right, op.cast(offs, INT64))
    return op.cast(product, op.result.dtype)


def _sums_over_groups(op: Op, left: ir.Value, right: ir.Value, ends: ir.Value) -> ir.Value:
    """[rows, inner] times [inner, columns], with one product per group of ``inner``."""
    inner, groups = op.dims(right)[0], op.dims(ends)[0]
    begins = op.Concat(op.const([0], INT64), op.Slice(ends, [0], [-1], [0]), axis=0)
    positions = arange(op, inner)
    after = op.GreaterOrEqual(positions, op.Unsqueeze(op.shaped(begins, (groups,)), [1]))
    inside = op.And(after, op.Less(positions, op.Unsqueeze(ends, [1])))
    own = op.Where(op.Unsqueeze(inside, [1]), left, op.const(0.0, op.dtype_of(left)))
    # Both operands are masked: an infinity outside of the group, times zero, would be NaN.
    return op.MatMul(own, op.Where(op.Unsqueeze(inside, [2]), right, op.const(0.0, op.dtype_of(right))))


# ---- covariances


def _observations(op: Op, self: ir.Value) -> ir.Value:
    """Return one row per variable."""
    value = op.cast(self, op.result.dtype)
    return value if op.rank_of(value) == 2 else op.Reshape(value, [1, -1])


def _products_of_rows(op: Op, left: ir.Value, right: ir.Value) -> ir.Value:
    product = op.MatMul(left, swapped(op, right, 0, 1))
    return product if op.result.shape else op.Reshape(product, [])


def weights_of_cov(
    op: Op, count: Dim, dtype: ir.DataType, correction: int, fweights: ir.Value | None, aweights: ir.Value | None
) -> tuple[ir.Value | None, ir.Value]:
    """Return the weights of the observations, if any, and the divisor of a covariance, which is limited to 0."""
    counts, factors = (None if each is None else op.cast(each, dtype) for each in (fweights, aweights))
    weights = op.Mul(counts, factors) if counts is not None and factors is not None else counts or factors
    total = op.scalar(count, dtype) if weights is None else op.ReduceSum(weights, [0], keepdims=0)
    subtracted = op.const(float(correction), dtype)
    if weights is not None and factors is not None and correction:
        of_factors = op.ReduceSum(op.Mul(weights, factors), [0], keepdims=0)
        subtracted = op.Div(op.Mul(of_factors, subtracted), total)
    return weights, op.Max(op.Sub(total, subtracted), op.const(0.0, dtype))


def centered_rows(op: Op, rows: ir.Value, weights: ir.Value | None) -> ir.Value:
    """Subtract the mean of each row."""
    if weights is None:
        return op.Sub(rows, op.ReduceMean(rows, [1], keepdims=1))
    sums = op.ReduceSum(op.Mul(rows, weights), [1], keepdims=1)
    return op.Sub(rows, op.Div(sums, op.ReduceSum(weights, [0], keepdims=0)))


@translates("aten::cov")
def cov(
    op: Op,
    self: ir.Value,
    correction: int = 1,
    fweights: ir.Value | None = None,
    aweights: ir.Value | None = None,
) -> ir.Value:
    """aten::cov(Tensor self, *, int correction=1, Tensor? fweights=None, Tensor? aweights=None) -> Tensor"""
    rows, dtype = _observations(op, self), op.result.dtype
    weights, divisor = weights_of_cov(op, op.dims(rows)[1], dtype, correction, fweights, aweights)
    centered = centered_rows(op, rows, weights)
    weighted = centered if weights is None else op.Mul(centered, weights)
    return op.Div(_products_of_rows(op, centered, weighted), divisor)


@translates("aten::corrcoef")
def corrcoef(op: Op, self: ir.Value) -> ir.Value:
    """aten::corrcoef(Tensor self) -> Tensor"""
    rows, dtype = _observations(op, self), op.result.dtype
    centered = centered_rows(op, rows, None)
    units = op.Div(centered, op.ReduceL2(centered, [1], keepdims=1))
    if not op.result.shape:
        # torch divides the variance by itself.
        variance = op.ReduceSumSquare(centered, keepdims=0)
        return op.Div(variance, variance)
    return op.Clip(_products_of_rows(op, units, units), op.const(-1.0, dtype), op.const(1.0, dtype))
