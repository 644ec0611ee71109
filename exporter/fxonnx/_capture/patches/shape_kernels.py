"""Shape-only kernels of operators whose own kernel specializes dynamic sizes, and their rows.

torch's kernels take sizes as plain C++ integers, choose an algorithm by size, or loop over time steps. The replacements
compute the shapes of the results only, which is sufficient with fake tensors. In order: convolution and pooling,
products and distances, indexing and shapes, histograms, Fourier transforms, sparse tensors, memory
layouts.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import sympy
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, has_guarding_hint, statically_known_true

from fxonnx_translations._torch_compat import DispatchKey, check, prims_common, sym_max, sym_min

from ..._own_operators import define_operator
from ..._user_files import is_user_code
from ..constraints.guard_recorder import GuardLog
from ..function_transforms import computes_gradients
from ..suspicions.departures import DepartureKind, record_departure
from .patch import DecompositionPatch, KernelPatch, Patch, PatchKind, ShapePatch, TorchFunctionPatch, applied

__all__ = ["KERNEL_PATCHES", "signed_slices"]


# Functions of torch without type annotations.
_broadcast: Callable[..., Sequence[int]] = torch.broadcast_shapes


def _conv_tbc(original: Callable[..., Any], self: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """``aten::conv_tbc`` of [time, batch, channels], whose own kernel reads the sizes as plain integers."""
    return self.new_empty([self.size(0) + 2 * pad - weight.size(0) + 1, self.size(1), weight.size(2)])


def _batch_norm(original: Callable[..., Any], input: Tensor, *arguments: Any) -> Tensor:
    """``aten::batch_norm``, whose meta kernel keeps the strides of transposed tensors; torch's results are contiguous.

    An unbacked number of elements, of which there may be none, has the shape only. On a GPU, torch chooses a kernel by
    the size of the batch, which would limit it.
    """
    if not has_guarding_hint(input.numel()):
        return torch.empty_like(input)
    result: Tensor = original(input, *arguments) if input.device.type == "cpu" else torch.empty_like(input)
    strides = result.stride()
    # The last axis, or the channels of channels_last.
    dense = (strides[-1], strides[1]) if len(strides) >= 4 else (strides[-1],)
    return result if any(statically_known_true(step == 1) for step in dense) else result.new_empty(result.shape)


def signed_slices(log: GuardLog, *, is_applied: bool) -> AbstractContextManager[None]:
    """Give the bounds of slices by sizes the signs of the example, as guards, or only note those of unknown sign.

    ``x[:, n // 2 - 4 : n // 2 + 4]`` begins at the end of a small ``x``: torch makes its size one that depends on data.
    """

    def index_of(original: Callable[..., Any], size: Any, index: Any) -> Any:
        found = original(size, index)
        if found is None and not free_unbacked_symbols([size, index]):
            log.has_unsigned_slices = True
            if is_applied:
                asked = index >= 0
                is_from_start = bool(asked)
                if isinstance(asked, torch.SymBool):
                    relation = asked.node.expr if is_from_start else sympy.Not(asked.node.expr)
                    log.add(asked.node.shape_env, relation, sys._getframe(1))
                return sym_min(index, size) if is_from_start else sym_max(index + size, 0)
        return found

    target = "torch._subclasses.fake_impls:_compute_slice_index"
    return applied([Patch(target, index_of, "the sign of a bound decides about the size")])


def _log_of_sum(original: Callable[..., Tensor], self: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """``aten::logsumexp``, of which the shape is that of the sum, also if there may be no elements."""
    return original(self, dim, keepdim) if has_guarding_hint(self.numel()) else torch.sum(self.exp(), dim, keepdim)


def _roll(original: Callable[..., Tensor], self: Tensor, *arguments: Any) -> Tensor:
    """``aten::roll``, of which the shape is that of its input, also if there may be no elements."""
    return original(self, *arguments) if has_guarding_hint(self.numel()) else self.new_empty(self.shape)


def _chunk_cat(original: Callable[..., Any], tensors: Sequence[Tensor], dim: int, num_chunks: int) -> Tensor:
    """``aten::_chunk_cat`` of tensors that are padded already."""

    def padded(tensor: Tensor) -> Tensor:
        shape = list(tensor.shape)
        shape[dim] = -(-shape[dim] // num_chunks) * num_chunks
        return tensor.new_empty(shape)

    result: Tensor = original([padded(tensor) for tensor in tensors], dim, num_chunks)
    return result


def _fill_diagonal(original: Callable[..., Any], self: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """``aten::fill_diagonal_``, which fills a strided view of as many elements as the smallest size."""
    check(self.dim() >= 2, lambda: f"fill_diagonal_ of {self.dim()} axes; it takes at least two")
    return self


def _fake_quantize(original: Callable[..., Any], self: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """The operators ``fake_quantize_*_cachemask``: the quantized tensor and the mask of the elements in range."""
    return torch.empty_like(self), torch.empty_like(self, dtype=torch.bool)


def _max_pool1d(
    original: Callable[..., Any],
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Tensor:
    """``aten::max_pool1d``, as ``max_pool2d`` of an image with one row."""
    result: Tensor = torch.ops.aten.max_pool2d(
        self.unsqueeze(-2),
        (1, *kernel_size),
        (1, *(stride or kernel_size)),
        (0, *padding),
        (1, *dilation),
        ceil_mode,
    )
    return result.squeeze(-2)


def _of_contiguous(original: Callable[..., Tensor], self: Tensor, *arguments: Any) -> Tensor:
    """``aten::pixel_shuffle``, ``pixel_unshuffle`` and ``col2im``, whose decompositions take a view of their input."""
    result = original(torch.empty_like(self, memory_format=torch.contiguous_format), *arguments)
    return result.contiguous(memory_format=prims_common.suggest_memory_format(self))


def _kron(original: Callable[..., Any], self: Tensor, other: Tensor) -> Tensor:
    """``aten::kron``: the product of the sizes per axis, aligned at the last axis."""
    rank = max(self.dim(), other.dim())
    shapes = [(1,) * (rank - tensor.dim()) + tuple(tensor.shape) for tensor in (self, other)]
    dtype = torch.result_type(self, other)
    return self.new_empty([one * two for one, two in zip(*shapes, strict=True)], dtype=dtype)


def _cdist(
    original: Callable[..., Any], x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: int | None = None
) -> Tensor:
    """``aten::cdist``, whose own kernel chooses a different algorithm above 25 rows."""
    check(x1.size(-1) == x2.size(-1), lambda: f"points of {x1.size(-1)} and {x2.size(-1)} coordinates")
    batch = _broadcast(x1.shape[:-2], x2.shape[:-2])
    return x1.new_empty([*batch, x1.size(-2), x2.size(-2)])


def _cov(
    original: Callable[..., Any],
    self: Tensor,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """``aten::cov``, whose own kernel checks the values of weights and of the divisor."""
    check(self.dim() <= 2, lambda: f"cov of {self.dim()} axes; it takes up to two")
    rows = self.shape[0] if self.dim() == 2 else 1
    dtype = self.dtype if self.dtype.is_floating_point or self.dtype.is_complex else torch.get_default_dtype()
    for weights in (fweights, aweights):
        if weights is not None and weights.dtype.is_floating_point:
            dtype = torch.promote_types(dtype, weights.dtype)
    return self.new_empty([] if rows == 1 else [rows, rows], dtype=dtype)


def _ctc_loss(
    original: Callable[..., Any],
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """``aten::ctc_loss``, whose own kernel reads the lengths."""
    is_batch = log_probs.dim() == 3 and reduction == 0
    return log_probs.new_empty([log_probs.shape[1]] if is_batch else [])


def _lstsq(
    original: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]],
    self: Tensor,
    b: Tensor,
    rcond: float | None = None,
    *,
    driver: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``aten::linalg_lstsq``: whether there are residuals depends on the ranks, which are taken to be full."""
    *batch, rows, columns = self.shape
    is_vector = b.shape == self.shape[:-1]
    if not is_vector and b.shape[:-1] != self.shape[:-1]:
        return original(self, b, rcond, driver=driver)
    right = (1,) if is_vector else (b.shape[-1],)
    solution = self.new_empty([*batch, columns, *(() if is_vector else right)])
    has_residuals = rows > columns and driver in ("gels", "gelsd", "gelss")
    residuals = self.new_empty([*batch, *right] if has_residuals else [0])
    rank = self.new_empty([0] if driver == "gels" else list(batch), dtype=torch.int64)
    has_values = driver in ("gelsd", "gelss")
    values = self.new_empty([*batch, min(rows, columns)] if has_values else [0])
    return solution, residuals, rank, values


def _narrow(original: Callable[..., Any], self: Tensor, dim: int, start: Tensor, length: int) -> Tensor:
    """``aten::narrow.Tensor``, whose own kernel reads the value of ``start``."""
    check(start.dim() == 0 and not start.dtype.is_floating_point, lambda: "start must be an integer of rank 0")
    return self.narrow(dim, 0, length)


def _combinations(original: Callable[..., Tensor], self: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """``aten::combinations``, whose own kernel selects from all tuples by a mask."""
    if r < 1 or self.dim() != 1:
        return original(self, r, with_replacement)
    # The positions are a constant, so that the size must be the example's.
    size = int(self.shape[0])
    return self.new_empty([math.comb(size + r - 1 if with_replacement else size, r) if size else 0, r])


def _take_along_dim(original: Callable[..., Any], self: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """``aten::take_along_dim``: all axes except ``dim`` are broadcast."""
    if dim is None:
        return self.new_empty([indices.numel()])
    check(self.dim() == indices.dim(), lambda: f"the indices have {indices.dim()} axes, the input has {self.dim()}")
    axis = dim % self.dim()
    shape = list(_broadcast(self.narrow(axis, 0, 1).shape, indices.narrow(axis, 0, 1).shape))
    return self.new_empty([*shape[:axis], indices.shape[axis], *shape[axis + 1 :]])


def _shape_as_tensor(original: Callable[..., Any], self: Tensor) -> Tensor:
    """``aten::_shape_as_tensor``, whose own kernel reads memory that fake tensors do not have."""
    return self.new_empty([self.dim()], dtype=torch.int64)


def _scaled_dot_product_attention(
    original: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *args: Any,
    **options: Any,
) -> Tensor:
    """``aten::scaled_dot_product_attention``, whose own kernel compares the sizes of a mask with 1."""
    mask = () if attn_mask is None else attn_mask.shape
    if all(has_guarding_hint(size) for size in (*query.shape, *key.shape, *value.shape, *mask)):
        return original(query, key, value, attn_mask, *args, **options)
    return query.new_empty([*query.shape[:-1], value.shape[-1]])


def _counts(original: Callable[..., Any], self: Tensor, bins: int = 100, **options: Any) -> tuple[Tensor, Tensor]:
    """``aten::histogram.bin_ct``: the counts and the edges of the bins."""
    return self.new_empty([bins]), self.new_empty([bins + 1])


def _counts_of_edges(original: Callable[..., Any], self: Tensor, bins: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """``aten::histogram.bins_tensor``: the counts, one less than the edges of the bins, and the edges."""
    return self.new_empty([bins.shape[0] - 1]), self.new_empty(bins.shape)


def _edges_of_points(original: Callable[..., Any], self: Tensor, bins: Sequence[int], **options: Any) -> list[Tensor]:
    """``aten::_histogramdd_bin_edges``: the edges of the bins of each coordinate."""
    return [self.new_empty([count + 1]) for count in bins]


def _counts_of_points(original: Callable[..., Any], self: Tensor, bins: Sequence[Any], **options: Any) -> Tensor:
    """``aten::_histogramdd_from_bin_cts`` and ``from_bin_tensors``: one count of each combination of bins."""
    return self.new_empty([one if isinstance(one, int) else one.shape[0] - 1 for one in bins])


def _counts_and_edges(
    original: Callable[..., Any], self: Tensor, bins: int, **options: Any
) -> tuple[Tensor, list[Tensor]]:
    """``aten::histogramdd.int_bins``: the same number of bins of each coordinate."""
    counts = [bins] * int(self.shape[-1])
    return _counts_of_points(original, self, counts), _edges_of_points(original, self, counts)


def _axes_and_lengths(rank: int, lengths: Any, axes: Any) -> Iterator[tuple[int, Any]]:
    given = [] if lengths is None else list(lengths) if isinstance(lengths, Sequence) else [lengths]
    if axes is None:
        axes = range(rank - len(given) if given else 0, rank)
    chosen = axes if isinstance(axes, Sequence) else [axes]
    for index, axis in enumerate(chosen):
        length = given[index] if index < len(given) else None
        yield axis % rank, None if type(length) is int and length == -1 else length


def _transform(
    kind: str, lengths: str, axes: Any, original: Callable[..., Tensor], self: Tensor, *args: Any, **options: Any
) -> Tensor:
    """Functions of ``torch.fft`` with a given length of an axis, which is compared with a dynamic size.

    The kind is "complex", "spectrum" for the first half of the spectrum of real numbers, or "signal" for its inverse.
    The parameter with the lengths has another name in each function, and ``dim`` another default.
    """
    given = dict(zip((lengths, "dim", "norm"), args, strict=False)) | options
    sizes, dim = given.get(lengths), given.get("dim", axes)
    shape = list(self.shape)
    pairs = list(_axes_and_lengths(self.dim(), sizes, dim))
    resized = [(axis, length) for axis, length in pairs if length is not None]
    if not any(isinstance(number, torch.SymInt) for axis, length in resized for number in (shape[axis], length)):
        return original(self, sizes, dim, given.get("norm"))
    for axis, length in resized:
        shape[axis] = length
    last, length = pairs[-1]
    dtype = self.dtype if self.dtype.is_floating_point or self.dtype.is_complex else torch.get_default_dtype()
    if kind == "spectrum":
        shape[last] = shape[last] // 2 + 1
    if kind == "signal":
        shape[last] = 2 * (shape[last] - 1) if length is None else length
    return self.new_empty(shape, dtype=dtype.to_real() if kind == "signal" else dtype.to_complex())


def _istft_shape(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Any = None,
    return_complex: bool = False,
) -> Tensor:
    allowed = {None: (n_fft // 2 + 1, n_fft), True: (n_fft // 2 + 1,), False: (n_fft,)}[onesided]
    check(input.dim() in (2, 3), lambda: f"istft of {input.dim()} axes; it takes two or three")
    check(
        any(input.shape[-2] == bins for bins in allowed),
        lambda: f"istft of {input.shape[-2]} frequencies; n_fft={n_fft} has {' or '.join(map(str, allowed))}",
    )
    step = n_fft // 4 if hop_length is None else hop_length
    if length is None:
        length = step * (input.shape[-1] - 1) + (n_fft - 2 * (n_fft // 2) if center else n_fft)
    dtype = input.dtype if return_complex else input.dtype.to_real()
    return input.new_empty([*input.shape[:-2], length], dtype=dtype)


_ISTFT = inspect.signature(_istft_shape)
_OPERATOR = define_operator(
    "fxonnx::istft(Tensor self, int n_fft, int? hop_length, int? win_length, Tensor? window, bool center, "
    "bool normalized, bool? onesided, SymInt length, bool return_complex) -> Tensor",
    torch.ops.aten.istft.default,
    _istft_shape,
)


def _istft(original: Callable[..., Tensor], *args: Any, **options: Any) -> Tensor:
    """``torch.istft`` with a dynamic length."""
    given = _ISTFT.bind(*args, **options)
    given.apply_defaults()
    if not isinstance(given.arguments["length"], torch.SymInt) or computes_gradients():
        return original(*args, **options)
    result: Tensor = torch.ops.fxonnx.istft(*given.args)
    return result


class _SparseShapePatch(KernelPatch):
    """Meta kernel of an operator for sparse tensors; it is never called for dense ones."""

    key = DispatchKey.SparseMeta

    def write(self, value: Any) -> None:
        """Register the kernel for all sparse layouts, or remove it."""
        super().write(value)
        kernels = self._operator().py_kernels
        if self.key in kernels:
            kernels[DispatchKey.SparseCsrMeta] = kernels[self.key]
        else:
            kernels.pop(DispatchKey.SparseCsrMeta, None)


def _mv(original: Callable[..., Any], self: Tensor, vec: Tensor) -> Any:
    """The decomposition of ``mv``: torch's multiplies the elements, which compressed sparse tensors do not have."""
    return original(self, vec) if _is_dense(self) else vec.new_empty(self.shape[:1])


def _addmm(original: Callable[..., Any], self: Tensor, mat1: Tensor, mat2: Tensor, **factors: Any) -> Any:
    if not (_is_dense(mat1) or _is_dense(mat2)):
        if self.layout is torch.sparse_coo:
            return original(self, mat1, mat2, **factors)
        # torch's own kernel for shapes ends the process.
        return torch.empty((mat1.shape[0], mat2.shape[1]), dtype=self.dtype, layout=self.layout, device=self.device)
    return _dense_one(mat1, mat2).new_empty((mat1.shape[0], mat2.shape[1]))


def _product(original: Callable[..., Any], one: Tensor, other: Tensor) -> Any:
    if _is_dense(one) == _is_dense(other):
        # Two sparse tensors, whose product is sparse.
        return original(one, other)
    return _dense_one(one, other).new_empty((*one.shape[:-1], other.shape[-1]))


def _dense_one(one: Tensor, other: Tensor) -> Tensor:
    return one if _is_dense(one) else other


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided


def _layout_of_tensor(original: Callable[..., bool], self: torch.Tensor, *args: Any, **kwargs: Any) -> bool:
    """``Tensor.is_contiguous``: the capture has one answer for all sizes, but axes of size 1 have other ones."""
    answer = original(self, *args, **kwargs)
    frame = sys._getframe(2)
    is_of_user = is_user_code(frame.f_code, frame.f_globals)
    is_dynamic = any(isinstance(size, torch.SymInt) for size in self.shape)
    if is_of_user and is_dynamic and (args or kwargs or not _is_always_contiguous(self)):
        record_departure(DepartureKind.INTROSPECTION, "is_contiguous", frame)
    return answer


def _contiguous(original: Callable[..., Tensor], self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``Tensor.contiguous``: it leaves no operator where an axis of size 1 makes the tensor contiguous."""
    result = original(self, *args, **kwargs)
    is_dynamic = result is self and any(isinstance(size, torch.SymInt) for size in self.shape)
    if not is_dynamic or args or kwargs or _is_always_contiguous(self):
        return result
    recorded: torch.Tensor = torch.ops.aten.contiguous.default(self)
    return recorded


def _is_always_contiguous(tensor: torch.Tensor) -> bool:
    """Whether a tensor has the strides of a contiguous one for all sizes."""
    # A product of traced sizes would be an operator.
    expected = sympy.Integer(1)
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if _expression(stride) != expected:
            return False
        expected *= _expression(size)
    return True


def _expression(size: int | torch.SymInt) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


_KERNELS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("_shape_as_tensor", _shape_as_tensor, "its kernel reads memory, which fake tensors do not have"),
    ("batch_norm", _batch_norm, "it branches on whether the input is empty"),
    (
        "scaled_dot_product_attention",
        _scaled_dot_product_attention,
        "its kernel compares sizes with 1, which unbacked sizes do not decide",
    ),
    ("max_pool1d", _max_pool1d, "its kernel specializes the length"),
    ("take_along_dim", _take_along_dim, "its kernel specializes the sizes"),
    *(
        (
            f"fft_{name}{suffix}",
            partial(_transform, kind, lengths, axes),
            "its kernel compares the given length with the size of the axis",
        )
        for name, kind in (
            *(("fft", "complex"), ("ifft", "complex"), ("rfft", "spectrum")),
            *(("ihfft", "spectrum"), ("irfft", "signal"), ("hfft", "signal")),
        )
        for suffix, lengths, axes in (("", "n", -1), ("2", "s", (-2, -1)), ("n", "s", None))
    ),
    (
        "istft",
        lambda _, *args, **options: _istft_shape(*args, **options),
        "its kernel writes one element of all frames after the other",
    ),
    ("kron", _kron, "its kernel specializes the sizes"),
    ("cdist", _cdist, "it branches on whether there are more than 25 points"),
    ("combinations", _combinations, "its number of results depends on a mask"),
    ("cov", _cov, "it branches on the values of weights"),
    ("ctc_loss.Tensor", _ctc_loss, "its kernel reads the lengths"),
    ("ctc_loss.IntList", _ctc_loss, "its kernel reads the lengths"),
    ("histogramdd.int_bins", _counts_and_edges, "its kernel specializes the number of points"),
    ("linalg_lstsq", _lstsq, "the shape of its residuals depends on the ranks"),
    ("fill_diagonal_", _fill_diagonal, "it reads the sizes as plain integers"),
    ("narrow.Tensor", _narrow, "it reads the value of a tensor"),
    ("_sparse_mm", _product, "torch calls the kernel itself, which needs the values of sizes"),
)
KERNEL_PATCHES: tuple[Patch, ...] = (
    *(KernelPatch(f"aten::{name}", kernel, why) for name, kernel, why in _KERNELS),
    *(
        ShapePatch(f"aten::{name}", kernel, why)
        for name, kernel, why in (
            ("conv_tbc", _conv_tbc, "its meta kernel specializes the sizes"),
            ("histogram.bin_ct", _counts, "it has no meta kernel"),
            ("histogram.bins_tensor", _counts_of_edges, "it has no meta kernel"),
            ("_histogramdd_bin_edges", _edges_of_points, "it has no meta kernel"),
            ("_histogramdd_from_bin_cts", _counts_of_points, "it has no meta kernel"),
            ("_histogramdd_from_bin_tensors", _counts_of_points, "it has no meta kernel"),
            ("fake_quantize_per_tensor_affine_cachemask", _fake_quantize, "it has no meta kernel"),
            ("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", _fake_quantize, "it has no meta kernel"),
            ("fake_quantize_per_channel_affine_cachemask", _fake_quantize, "it has no meta kernel"),
        )
    ),
    *(
        _SparseShapePatch(f"aten::{name}", kernel, "torch calls the kernel itself, which needs the values of sizes")
        for name, kernel in (("mm", _product), ("bmm", _product), ("addmm", _addmm), ("_sparse_addmm", _addmm))
    ),
    DecompositionPatch("aten::_chunk_cat", _chunk_cat, "it branches on whether sizes are padded"),
    DecompositionPatch("aten::logsumexp", _log_of_sum, "it branches on whether the input is empty"),
    DecompositionPatch("aten::roll", _roll, "it branches on whether the input is empty"),
    DecompositionPatch("aten::mv", _mv, "its decomposition multiplies by strides, which CSR tensors do not have"),
    *(
        DecompositionPatch(f"aten::{name}", _of_contiguous, "for a transposed image, or a part, it specializes sizes")
        for name in ("pixel_shuffle", "pixel_unshuffle", "col2im")
    ),
    TorchFunctionPatch("torch:istft", _istft, "its C++ function specializes the length", strict=False),
    Patch(
        "torch:Tensor.is_contiguous",
        _layout_of_tensor,
        "it has one answer for all sizes, and axes of size 1 change it",
        PatchKind.SOUND,
        strict=False,
    ),
    Patch(
        "torch:Tensor.contiguous",
        _contiguous,
        "it leaves no operator if the example makes the tensor contiguous by an axis of size 1",
        PatchKind.SOUND,
        strict=False,
    ),
)
"""Applied during captures."""
