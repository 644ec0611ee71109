"""Einstein summation: as a matrix product, as Einsum, or as products of two operands at a time."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ..._builder.op import Op, Unsupported
from ..._builder.symbolic_dims import Dim
from ..._registry import translates
from ..indexing.slicing import diagonal_of
from ..view import swapped
from .matmul import wide

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
    return term.changed(labels, lambda part: op.cast(op.ReduceSum(*wide(op, part), axes, keepdims=0), dtype))


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
