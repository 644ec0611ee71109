"""Structural operators: those that act on the real and the imaginary part of complex tensors separately."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .._aten.indexing.scatter import scatter_and_reduce
from .._builder.op import Op, Unsupported
from .._builder.symbolic_dims import Dim
from .._registry import structural, translates
from .parts import is_complex, on_parts

TRANSLATIONS = (
    # Views and copies.
    structural(
        "aten::_unsafe_view",
        "aten::alias",
        "aten::as_strided",
        "aten::broadcast_to",
        "aten::chunk",
        "aten::clone",
        "aten::combinations",
        "aten::contiguous",
        "aten::detach",
        "aten::diagonal",
        "aten::dsplit.int",
        "aten::expand",
        "aten::flatten.using_ints",
        "aten::flip",
        "aten::hsplit.int",
        "aten::lift_fresh_copy",
        "aten::moveaxis.int",
        "aten::moveaxis.intlist",
        "aten::movedim.int",
        "aten::movedim.intlist",
        "aten::narrow.Tensor",
        "aten::numpy_T",
        "aten::permute",
        "aten::repeat",
        "aten::repeat_interleave.self_Tensor",
        "aten::repeat_interleave.self_int",
        "aten::reshape",
        "aten::resolve_neg",
        "aten::roll",
        "aten::rot90",
        "aten::select.int",
        "aten::select_copy.int",
        "aten::split.Tensor",
        "aten::split.sizes",
        "aten::split_with_sizes",
        "aten::squeeze",
        "aten::squeeze.dim",
        "aten::squeeze.dims",
        "aten::swapaxes",
        "aten::swapdims",
        "aten::t",
        "aten::tensor_split.indices",
        "aten::tensor_split.sections",
        "aten::tensor_split.tensor_indices_or_sections",
        "aten::tile",
        "aten::transpose.int",
        "aten::tril",
        "aten::triu",
        "aten::unbind.int",
        "aten::unflatten.int",
        "aten::unfold",
        "aten::unsafe_chunk",
        "aten::unsafe_split.Tensor",
        "aten::unsafe_split_with_sizes",
        "aten::unsqueeze",
        "aten::view",
        "aten::vsplit.int",
        "aten::zeros_like",
        "aten::empty_like",
        "aten::new_empty",
        "aten::new_zeros",
        "aten::channel_shuffle",
        "aten::native_channel_shuffle",
        "aten::pixel_shuffle",
        "aten::pixel_unshuffle",
        data=("self",),
    ),
    structural(
        "aten::narrow",
        "aten::narrow_copy",
        "aten::slice.Tensor",
        "aten::slice_copy.Tensor",
        data=("self",),
        has_parts_axis=True,
    ),
    structural("aten::constant_pad_nd", data=("self", "value"), has_parts_axis=True),
    structural(
        "aten::expand_as",
        "aten::reshape_as",
        "aten::view_as",
        data=("self", "other"),
    ),
    structural("aten::_chunk_cat", "aten::cat", "aten::concat", "aten::concatenate", "aten::stack", data=("tensors",)),
    structural("aten::meshgrid", "aten::meshgrid.indexing", data=("tensors",)),
    # Indexing.
    structural(
        "aten::_unsafe_index.Tensor",
        "aten::gather",
        "aten::index.Tensor",
        "aten::index_select",
        "aten::masked_select",
        "aten::take",
        "aten::take_along_dim",
        data=("self",),
    ),
    structural("aten::embedding", data=("weight",)),
    structural(
        "aten::_unsafe_index_put",
        "aten::index_put",
        data=("self", "values"),
    ),
    structural(
        "aten::as_strided_scatter",
        "aten::diagonal_scatter",
        "aten::scatter.src",
        "aten::scatter_add",
        "aten::select_scatter",
        "aten::slice_scatter",
        data=("self", "src"),
    ),
    structural(
        "aten::index_fill.int_Scalar",
        "aten::index_fill.int_Tensor",
        "aten::masked_fill.Scalar",
        "aten::masked_fill.Tensor",
        "aten::scatter.value",
        "aten::fill.Scalar",
        data=("self", "value"),
    ),
    structural("aten::_unsafe_masked_index", data=("self", "fill")),
    structural("aten::_unsafe_masked_index_put_accumulate", data=("self", "values")),
    structural("aten::index_add", "aten::index_copy", "aten::masked_scatter", data=("self", "source")),
    structural("aten::put", data=("self", "source")),
    structural(
        "aten::where.self",
        "aten::where.ScalarOther",
        "aten::where.ScalarSelf",
        "aten::where.Scalar",
        data=("self", "other"),
    ),
    structural("aten::copy", data=("self", "src")),
    # Constants: the parts without data are zero.
    structural("aten::zeros", "aten::empty.memory_format", data=()),
    structural("aten::full", data=("fill_value",)),
    structural("aten::full_like", "aten::new_full", data=("self", "fill_value")),
    structural("aten::scalar_tensor", data=("s",)),
    structural(
        "aten::empty_strided",
        "aten::new_empty_strided",
        "aten::rand",
        "aten::rand_like",
        "aten::uniform",
        data=(),
    ),
    # Linear operators with real factors.
    structural("aten::sum_to_size", data=("self",)),
    structural(
        "aten::cumsum",
        "aten::diff",
        "aten::mean",
        "aten::mean.dim",
        "aten::neg",
        "aten::negative",
        "aten::positive",
        "aten::sum",
        "aten::sum.dim_IntList",
        data=("self", "prepend", "append"),
    ),
)


@translates("aten::broadcast_tensors", complex=True)
def broadcast_tensors(op: Op, tensors: Sequence[ir.Value]) -> list[ir.Value]:
    """aten::broadcast_tensors(Tensor[] tensors) -> Tensor[]"""

    # Without type promotion: real tensors remain real.
    def broadcast(value: ir.Value, shape: Sequence[Dim]) -> ir.Value:
        if not is_complex(op, value):
            return op.expand(value, shape)
        real, imaginary = op.parts(value)
        return op.join(op.expand(real, shape), op.expand(imaginary, shape))

    return [broadcast(value, result.shape) for value, result in zip(tensors, op.results, strict=True)]


@translates("aten::scatter.reduce", complex=True)
def scatter_reduce(op: Op, self: ir.Value, dim: int, index: ir.Value, src: ir.Value, reduce: str) -> ir.Value:
    """aten::scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor"""
    if reduce != "add":
        raise Unsupported("products of complex elements at one position")
    on_each = on_parts(scatter_and_reduce, ("self", "src"))
    result: ir.Value = on_each(op, self=self, dim=dim, index=index, src=src, reduce=reduce)
    return result
