"""Structural operators with complex tensors: they act on the real and the imaginary part separately."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxonnx
from tests.functions import Function

from .harness import Case, T, run

aten = torch.ops.aten
C64 = torch.complex64
_Z = T(("n", 6), C64)
_CUBE = T(("n", 4, 6), C64)
_IMAGE = T((2, 8, 4, 4), C64)
_ROWS = torch.tensor([[0, 2], [1, 1], [3, 0]])
_PICK = torch.tensor([2, 0])
_MASK = torch.tensor([True, False, True, False, False, True])
_SQUARE = T((4, 6), C64)


def _case(target: Any, *arguments: Any, inputs: tuple[Any, ...] = (_Z,), name: str = "", **options: Any) -> Case:
    """A call of ``target`` with the inputs first."""

    def call(*tensors: torch.Tensor) -> Any:
        return target(*tensors, *arguments, **options)

    return Case(str(target), call, inputs, name)


def _first(target: Any, *arguments: Any, inputs: tuple[Any, ...] = (_Z,)) -> Case:
    """A call whose first argument is the list of the inputs."""
    return Case(str(target), lambda *tensors: target(list(tensors), *arguments), inputs)


CASES = (
    _case(aten.alias.default),
    _case(aten.broadcast_to.default, [3, 4, 6], inputs=(_SQUARE,)),
    _case(aten.chunk.default, 2, 1),
    _case(aten.clone.default),
    _case(aten.lift_fresh_copy.default),
    _case(aten.contiguous.default),
    _case(aten.detach.default),
    _case(aten.diagonal.default, 1, 0, 1),
    _case(aten.expand.default, [3, -1, 6]),
    _case(aten.flatten.using_ints, 1, 2, inputs=(_CUBE,)),
    _case(aten.flip.default, [0, 1]),
    _case(aten.moveaxis.int, 0, 2, inputs=(_CUBE,)),
    _case(aten.moveaxis.intlist, [0, 1], [1, 2], inputs=(_CUBE,)),
    _case(aten.movedim.int, 0, 2, inputs=(_CUBE,)),
    _case(aten.movedim.intlist, [0, 1], [1, 2], inputs=(_CUBE,)),
    _case(aten.narrow.default, 1, 2, 3),
    _case(aten.narrow_copy.default, 1, 2, 3),
    _case(aten.numpy_T.default),
    _case(aten.permute.default, [2, 0, 1], inputs=(_CUBE,)),
    _case(aten.repeat.default, [2, 3]),
    _case(aten.repeat_interleave.self_int, 2, 1),
    _case(aten.repeat_interleave.self_Tensor, torch.tensor([1, 2, 0, 1, 3, 1]), 1, inputs=(_SQUARE,), output_size=8),
    _case(aten.reshape.default, [-1, 24], inputs=(_CUBE,)),
    _case(aten.view.default, [-1, 24], inputs=(_CUBE,)),
    _case(aten._unsafe_view.default, [-1, 24], inputs=(_CUBE,)),
    _case(aten.resolve_neg.default),
    _case(aten.roll.default, [2], [1]),
    _case(aten.rot90.default),
    _case(aten.select.int, 1, -1),
    _case(aten.select_copy.int, 1, -1),
    _case(aten.slice.Tensor, 1, 1, 5, 2),
    _case(aten.slice_copy.Tensor, 1, 1, 5, 2),
    _case(aten.split.Tensor, 4, 1),
    _case(aten.split.sizes, [2, 4], 1),
    _case(aten.split_with_sizes.default, [2, 4], 1),
    _case(aten.squeeze.default, inputs=(T((3, 1, 4), C64),)),
    _case(aten.squeeze.dim, 1, inputs=(T(("n", 1, 4), C64),)),
    _case(aten.squeeze.dims, [1], inputs=(T(("n", 1, 4), C64),)),
    _case(aten.swapaxes.default, 0, 1),
    _case(aten.swapdims.default, 0, 1),
    _case(aten.t.default),
    _case(aten.tensor_split.sections, 4, 1),
    _case(aten.hsplit.int, 3),
    _case(aten.vsplit.int, 2, inputs=(_SQUARE,)),
    _case(aten.dsplit.int, 2, inputs=(_CUBE,)),
    _case(aten.sum_to_size.default, [1, 6]),
    Case("aten.scatter.reduce", lambda x, y: x.scatter(1, _PICK[None], y, reduce="add"), (_Z, _Z), "add"),
    _case(aten.tensor_split.indices, [1, 3], 1),
    _case(aten.tile.default, [2, 2]),
    _case(aten.transpose.int, 0, 1),
    _case(aten.tril.default, -1),
    _case(aten.triu.default, 1),
    _case(aten.unbind.int, 1),
    _case(aten.unflatten.int, 1, [2, 3]),
    _case(aten.unfold.default, 1, 3, 2),
    _case(aten.unsafe_chunk.default, 2, 1),
    _case(aten.unsafe_split.Tensor, 4, 1),
    _case(aten.unsafe_split_with_sizes.default, [2, 4], 1),
    _case(aten.unsqueeze.default, -1),
    _case(aten.as_strided.default, [2, 3], [6, 2], 1, inputs=(_SQUARE,)),
    _case(aten.channel_shuffle.default, 4, inputs=(_IMAGE,)),
    _case(aten.native_channel_shuffle.default, 4, inputs=(_IMAGE,)),
    _case(aten.pixel_shuffle.default, 2, inputs=(_IMAGE,)),
    _case(aten.pixel_unshuffle.default, 2, inputs=(_IMAGE,)),
    _case(aten.expand_as.default, inputs=(T(("n", 1), C64), _Z)),
    _case(aten.expand_as.default, inputs=(T(("n", 1)), _Z), name="real next to complex"),
    _case(aten.reshape_as.default, inputs=(_SQUARE, T((6, 4), C64))),
    _case(aten.view_as.default, inputs=(_SQUARE, T((6, 4), C64))),
    _first(aten.cat.default, 1, inputs=(_Z, T(("n", 2)))),
    _first(aten.concat.default, 1, inputs=(_Z, T(("n", 2), C64))),
    _first(aten.concatenate.default, 1, inputs=(_Z, T(("n", 2), C64))),
    _first(aten.stack.default, -1, inputs=(_Z, T(("n", 6)))),
    _first(aten.broadcast_tensors.default, inputs=(T((1, 3), C64), T((4, 1), C64))),
    Case(
        "aten.broadcast_tensors.default",
        lambda z, x: torch.broadcast_tensors(z, x),
        (T(("n", 3), C64), T((3,), torch.float64)),
        "of different types",
    ),
    _first(aten.meshgrid.default, inputs=(T((3,), C64), T((4,), C64))),
    Case("aten.meshgrid.indexing", lambda a, b: aten.meshgrid.indexing([a, b], indexing="xy"), (T((3,), C64),) * 2),
    _case(aten.gather.default, 1, _ROWS, inputs=(_SQUARE,)),
    _case(aten.index.Tensor, [None, _PICK]),
    _case(aten._unsafe_index.Tensor, [None, _PICK]),
    _case(aten.index_select.default, 1, _PICK),
    _case(aten.masked_select.default, _MASK),
    _case(aten.take.default, _ROWS, inputs=(_SQUARE,)),
    _case(aten.take_along_dim.default, 1, inputs=(_SQUARE, torch.tensor([[0], [2], [5], [1]]))),
    _case(aten.embedding.default, _ROWS, inputs=(_SQUARE,)),
    Case("aten.index_put.default", lambda x, v: aten.index_put(x, [_PICK], v), (_SQUARE, T((2, 6), C64))),
    Case("aten._unsafe_index_put.default", lambda x, v: aten._unsafe_index_put(x, [_PICK], v), (_SQUARE, T((6,), C64))),
    Case(
        "aten._unsafe_masked_index.default",
        lambda x: aten._unsafe_masked_index(x, torch.tensor([True, False]), [_PICK], 1 + 2j),
        (T((4,), C64),),
    ),
    Case(
        "aten._unsafe_masked_index_put_accumulate.default",
        lambda x, v: aten._unsafe_masked_index_put_accumulate(x, torch.tensor([True, False]), [_PICK], v),
        (T((4,), C64), T((2,), C64)),
    ),
    Case("aten.diagonal_scatter.default", aten.diagonal_scatter, (_SQUARE, T((4,), C64))),
    Case("aten.scatter.src", lambda x, v: aten.scatter(x, 1, _ROWS, v), (_SQUARE, T((3, 2), C64))),
    Case("aten.scatter.value", lambda x: aten.scatter(x, 1, _ROWS, 1 - 2j), (_SQUARE,)),
    Case("aten.scatter_add.default", lambda x, v: aten.scatter_add(x, 1, _ROWS, v), (_SQUARE, T((3, 2), C64))),
    Case("aten.select_scatter.default", lambda x, v: aten.select_scatter(x, v, 1, 2), (_Z, T(("n",), C64))),
    Case("aten.slice_scatter.default", lambda x, v: aten.slice_scatter(x, v, 1, 2, 4), (_Z, T(("n", 2), C64))),
    Case("aten.index_fill.int_Scalar", lambda x: aten.index_fill(x, 1, _PICK, 1 - 2j), (_Z,)),
    Case("aten.index_fill.int_Tensor", lambda x, v: aten.index_fill(x, 1, _PICK, v), (_Z, T((), C64))),
    Case("aten.masked_fill.Scalar", lambda x: aten.masked_fill(x, _MASK, 1 - 2j), (_Z,)),
    Case("aten.masked_fill.Tensor", lambda x, v: aten.masked_fill(x, _MASK, v), (_Z, T((), C64))),
    Case("aten.constant_pad_nd.default", lambda x: aten.constant_pad_nd(x, [1, 2], 3.0), (_Z,), "real"),
    Case("aten.constant_pad_nd.default", lambda x: aten.constant_pad_nd(x, [1, 2], 3 - 1j), (_Z,)),
    Case("aten.fill.Scalar", lambda x: aten.fill(x, 3 - 1j), (_Z,)),
    Case("aten.index_add.default", lambda x, v: aten.index_add(x, 1, _PICK, v), (_Z, T(("n", 2), C64))),
    Case("aten.index_copy.default", lambda x, v: aten.index_copy(x, 1, _PICK, v), (_Z, T(("n", 2), C64))),
    Case("aten.masked_scatter.default", lambda x, v: aten.masked_scatter(x, _MASK, v), (_SQUARE, T((4, 6), C64))),
    Case("aten.put.default", lambda x, v: aten.put(x, _PICK, v), (_SQUARE, T((2,), C64))),
    Case("aten.where.self", lambda x, y: torch.where(_MASK, x, y), (_Z, _Z)),
    Case("aten.where.self", lambda x, y: torch.where(_MASK, x, y), (_Z, T(("n", 6))), "with a real tensor"),
    Case("aten.where.ScalarOther", lambda x: aten.where.ScalarOther(_MASK, x, 1 - 2j), (_Z,)),
    Case("aten.where.ScalarSelf", lambda x: aten.where.ScalarSelf(_MASK, 1 - 2j, x), (_Z,)),
    Case("aten.where.Scalar", lambda x: aten.where.Scalar(_MASK, 1j, 2.0) * x, (_Z,)),
    Case("aten.copy.default", aten.copy, (_Z, _Z)),
    Case("aten.zeros.default", lambda x: aten.zeros([x.shape[0], 6], dtype=C64) + x, (_Z,)),
    Case("aten.zeros_like.default", aten.zeros_like, (_Z,)),
    Case("aten.empty.memory_format", lambda x: aten.zero(aten.empty([x.shape[0], 6], dtype=C64)) + x, (_Z,)),
    Case("aten.empty_like.default", lambda x: aten.zero(aten.empty_like(x)), (_Z,)),
    Case(
        "aten.as_strided_scatter.default",
        lambda x, y: torch.as_strided_scatter(x, y, (2, 2), (1, 2), 1),
        (T((3, 4), C64), T((2, 2), C64)),
    ),
    Case("aten.empty_strided.default", lambda x: x + aten.zero(aten.empty_strided([6], [1], dtype=C64)), (_Z,)),
    Case("aten.new_empty_strided.default", lambda x: aten.zero(aten.new_empty_strided(x, [2], [1])), (_Z,)),
    Case(
        "aten.tensor_split.tensor_indices_or_sections",
        lambda x: x.tensor_split(torch.tensor([1, 4]), 1),
        (_Z,),
    ),
    Case("aten.new_empty.default", lambda x: aten.zero(aten.new_empty(x, [2])), (_Z,)),
    Case("aten.new_zeros.default", lambda x: aten.new_zeros(x, [2]), (_Z,)),
    Case("aten.full.default", lambda x: aten.full([x.shape[0], 6], 1 - 2j, dtype=C64) + x, (_Z,)),
    Case("aten.full_like.default", lambda x: aten.full_like(x, 1 - 2j), (_Z,)),
    Case("aten.new_full.default", lambda x: aten.new_full(x, [2], 1 - 2j), (_Z,)),
    Case("aten.scalar_tensor.default", lambda x: aten.scalar_tensor(1 - 2j, dtype=C64) + x, (_Z,)),
    Case("aten.cumsum.default", lambda x: aten.cumsum(x, 1), (_Z,)),
    Case("aten.diff.default", lambda x: aten.diff(x, 2, 1), (_Z,)),
    Case("aten.mean.default", aten.mean, (_SQUARE,)),
    Case("aten.mean.dim", lambda x: aten.mean(x, [1]), (_Z,)),
    Case("aten.neg.default", aten.neg, (_Z,)),
    Case("aten.negative.default", aten.negative, (_Z,)),
    Case("aten.positive.default", lambda x: aten.positive(x) + 1, (_Z,)),
    Case("aten.sum.default", aten.sum, (_Z,)),
    Case("aten.sum.dim_IntList", lambda x: aten.sum(x, [1], True), (_Z,)),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_complex_structural(case: Case) -> None:
    run(case)


def test_products_of_complex_elements_at_one_position_are_refused() -> None:
    model = Function(lambda x, y: x.scatter(1, _PICK[None], y, reduce="multiply"))
    inputs = (torch.rand(4, 6, dtype=C64), torch.rand(4, 6, dtype=C64))
    with pytest.raises(fxonnx.UnsupportedOperatorError, match="products of complex elements at one position"):
        fxonnx.export(model, inputs)
