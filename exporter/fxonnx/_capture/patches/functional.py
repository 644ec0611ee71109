"""Replacements of torch functions whose own implementation is only valid for the example sizes.

Their Python code branches on sizes or on the values of tensors, or passes sizes to C++ as plain integers, which
specializes them. In order: creation and splitting, broadcasting, pooling, attention, losses, layouts. Each replacement
calls the original for arguments without dynamic sizes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, reduce
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import (
    free_unbacked_symbols,
    guarding_hint_or_throw,
    has_guarding_hint,
    statically_known_true,
)
from torch.nn import functional as F

from fxonnx_translations._torch_compat import FakeTensor, arange, check, pytree, scan, sym_float, sym_max, sym_min

from ..._context_values import activated, active
from ..._user_files import is_user_code
from ..suspicions.departures import DepartureKind, record_departure
from ..suspicions.handled_errors import record_raised
from .patch import Patch, PatchKind

__all__ = [
    "GLOBAL_POOLING",
    "MASK_PATCHES",
    "QUOTIENT_PATCHES",
    "WRAPPER_PATCHES",
    "FullMasks",
    "as_tensor",
    "associative_scan",
    "detect_is_causal_mask",
    "has_internal_overlap",
    "hash_of_size",
    "infer_size",
    "isin",
    "layout_of_tensor",
    "linspace",
    "pad_sequence",
    "pooling_output_shape",
    "scaled_dot_product_attention",
    "tensor",
    "tensor_split",
    "unbind",
    "validate_device",
]


def _floor_divide(original: Callable[[Any, Any], Any], self: Any, other: Any) -> Any:
    """``size // 0.1``, from the exact remainder like Python: the floor of the rounded quotient may be one too large."""
    if not isinstance(self, torch.SymFloat) and not isinstance(other, float | torch.SymFloat):
        return original(self, other)
    quotient = _floor_quotient(sym_float(self), sym_float(other))
    is_positive = isinstance(other, float) and other > 0
    # The range of the quotient, from those of the dividend and of the remainder, has negative numbers.
    return sym_max(quotient, 0.0) if is_positive and statically_known_true(self >= 0) else quotient


def _floor_divide_by(original: Callable[[Any, Any], Any], self: Any, other: Any) -> Any:
    """``0.1 // size``, like ``_floor_divide``."""
    if not isinstance(self, torch.SymFloat) and not isinstance(other, float | torch.SymFloat):
        return original(self, other)
    return _floor_quotient(sym_float(other), sym_float(self))


def _floor_quotient(left: Any, right: Any) -> Any:
    return sym_float(round((left - left % right) / right))


def hash_of_size(original: Callable[..., int], self: torch.SymInt) -> int:
    """``SymInt.__hash__`` of a tensor's value in the user's code (``set(lengths)``): the value is a guard.

    torch refuses to hash sizes. Its own code relies on the error, and so does code that handles it: einops caches what
    it computes by shape, and computes it anew for shapes that cannot be hashed.
    """
    # The caller of the function that the patch defines.
    frame = sys._getframe(2)
    is_guard = is_user_code(frame.f_code, frame.f_globals) and "TypeError" not in frame.f_code.co_names
    return hash(int(self)) if is_guard and free_unbacked_symbols(self) else record_raised(original, self)


def linspace(original: Callable[..., Tensor], start: Any, end: Any, steps: Any, **options: Any) -> Tensor:
    """``torch.linspace`` with a dynamic number of steps, computed from both ends as torch does."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    if not isinstance(steps, torch.SymInt) or not dtype.is_floating_point or options.get("out") is not None:
        return original(start, end, steps, **options)
    computed = torch.float64 if dtype == torch.float64 else torch.float32
    index: Tensor = arange(steps, dtype=computed, device=options.get("device"))
    share = index / sym_max(steps - 1, 1)
    # As in torch, the second half is computed from the end, so that both ends are exact; a single step is the start.
    from_start = index < sym_max(steps // 2, 2 - steps)
    result = torch.where(from_start, start + (end - start) * share, end - (end - start) * share.flip(0))
    return result.to(dtype)


def as_tensor(original: Callable[..., Tensor], data: Any, *args: Any, **options: Any) -> Tensor:
    """``torch.as_tensor`` of a list that contains sizes or tensors, as ``torch.tensor``."""
    if isinstance(data, (list, tuple)) and any(
        isinstance(item, torch.SymInt | Tensor) for item in pytree.tree_leaves(data)
    ):
        names = ("dtype", "device")[: len(args)]
        return torch.tensor(data, **dict(zip(names, args, strict=True)), **options)
    return original(data, *args, **options)


def tensor(original: Callable[..., Tensor], data: Any, **options: Any) -> Tensor:
    """``torch.tensor`` of numbers some of which are tensors (``[x[0], 2.0]``), whose values torch reads, or sizes.

    torch.export computes it of sizes in the same way, but knows the function by its identity.
    """
    leaves = pytree.tree_leaves(data)
    is_traced = any(isinstance(item, Tensor | torch.SymInt | torch.SymFloat | torch.SymBool) for item in leaves)
    if isinstance(data, Tensor) or not is_traced or not all(map(_is_number, leaves)):
        return original(data, **options)
    # The common dtype of all items, none of which is weaker than another one.
    common = reduce(torch.promote_types, map(_dtype_of_number, leaves))
    dtype, device = options.get("dtype") or common, options.get("device") or "cpu"
    if common.is_floating_point and not dtype.is_floating_point and any(isinstance(item, Tensor) for item in leaves):
        return original(data, **options)

    def joined(items: Any) -> Tensor:
        if isinstance(items, Tensor):
            return items.detach().to(device=device, dtype=dtype)
        if isinstance(items, (list, tuple)):
            return torch.stack([joined(item) for item in items])
        return torch.scalar_tensor(items, dtype=dtype, device=device)

    return joined(data).requires_grad_(options.get("requires_grad", False))


def _is_number(item: Any) -> bool:
    numbers = bool | int | float | torch.SymInt | torch.SymFloat | torch.SymBool
    return item.dim() == 0 if isinstance(item, Tensor) else isinstance(item, numbers)


def _dtype_of_number(item: Any) -> torch.dtype:
    if isinstance(item, Tensor):
        return item.dtype
    if isinstance(item, bool | torch.SymBool):
        return torch.bool
    return torch.int64 if isinstance(item, int | torch.SymInt) else torch.get_default_dtype()


def pad_sequence(
    original: Callable[..., Tensor],
    sequences: Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """``aten::pad_sequence``: pad to the greatest length as an expression; torch's kernel compares the lengths."""
    lengths = [sequence.shape[0] for sequence in sequences]
    if padding_side not in ("left", "right") or not any(isinstance(length, torch.SymInt) for length in lengths):
        return original(sequences, batch_first, padding_value, padding_side)
    longest = reduce(sym_max, lengths)
    padded = []
    for sequence, length in zip(sequences, lengths, strict=True):
        ends = [0, longest - length] if padding_side == "right" else [longest - length, 0]
        padded.append(F.pad(sequence, [0, 0] * (sequence.dim() - 1) + ends, value=padding_value))
    return torch.stack(padded, 0 if batch_first else 1)


def tensor_split(
    original: Callable[..., Any], self: Tensor, sections: int | torch.SymInt, dim: int = 0
) -> list[Tensor]:
    """aten::tensor_split.sections(Tensor(a -> *) self, SymInt sections, int dim=0) -> Tensor(a)[]

    Compute the lengths for any size: the first ``size % sections`` sections are longer by one element.
    """
    size = self.shape[dim] if self.dim() else None
    if not isinstance(size, torch.SymInt) or not isinstance(sections, int) or sections < 1:
        return list(original(self, sections, dim))
    parts, start = [], 0
    for section in range(sections):
        length = (size + sections - 1 - section) // sections
        parts.append(self.narrow(dim, start, length))
        start = start + length
    return parts


def unbind(original: Callable[..., Any], self: Tensor, dim: int = 0) -> Sequence[Tensor]:
    """aten::unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]

    Specialize the size once; torch's decomposition checks for every part whether its size is 1.
    """
    size = self.shape[dim] if self.dim() else None
    if not isinstance(size, torch.SymInt):
        parts: Sequence[Tensor] = original(self, dim)
        return parts
    return tuple(self.select(dim, index) for index in range(int(size)))


def isin(
    original: Callable[..., Tensor],
    elements: Any,
    test_elements: Any,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    """``torch.isin`` of tensors with a dynamic number of elements: compares all pairs.

    torch's decomposition chooses between comparisons and a sort by the numbers of elements.
    """
    tensors = [tensor for tensor in (elements, test_elements) if isinstance(tensor, Tensor)]
    if len(tensors) < 2 or not any(isinstance(tensor.numel(), torch.SymInt) for tensor in tensors):
        return original(elements, test_elements, assume_unique=assume_unique, invert=invert)
    found: Tensor = (elements.unsqueeze(-1) == test_elements.flatten()).any(-1)
    return ~found if invert else found


def infer_size(original: Callable[..., Any], a: Sequence[Any], b: Sequence[Any]) -> Any:
    """Broadcast a computed size that is 1 in the example, such as ``1 - max(0, 1 - length)``.

    On its fast path, torch assumes that a size which may be 1 is not 1 and therefore equal to the other size, which the
    example contradicts. As torch's slow path does, the replacement evaluates the example first.
    """
    for first, second in zip_longest(reversed(a), reversed(b), fillvalue=1):
        if type(first) is int and type(second) is int:
            continue
        if not (has_guarding_hint(first) and has_guarding_hint(second)):
            continue
        sizes = guarding_hint_or_throw(first), guarding_hint_or_throw(second)
        if 1 in sizes and sizes[0] != sizes[1]:
            check(first == 1 if sizes[0] == 1 else second == 1)
    return original(a, b)


def _global_pooling(pooled: Callable[..., Tensor], rank: int) -> Callable[..., Any]:
    """Build the replacement of a pooling function for windows that are as large as the input.

    Args:
        pooled: The adaptive pooling function: ``adaptive_avg_pool2d`` ...
        rank: Number of pooled axes.
    """

    def replacement(original: Callable[..., Any], input: Tensor, kernel_size: Any, *args: Any, **options: Any) -> Any:
        default = not args and all(value in (None, False, 0, True) for value in options.values())
        # A function of the model that torch.export intercepts gets all options.
        others = (options.get(name) for name in ("return_indices", "divisor_override", "stride", "padding"))
        if default and not any(others) and _covers_input(kernel_size, input.shape[-rank:]):
            return pooled(input, 1)
        return original(input, kernel_size, *args, **options)

    return replacement


def _covers_input(kernel_size: Any, sizes: Sequence[int | torch.SymInt]) -> bool:
    """Whether a dynamic kernel size is the same expression as the input size, which needs no guard."""
    kernel = tuple(kernel_size) if isinstance(kernel_size, Sequence) else (kernel_size,) * len(sizes)
    if len(kernel) != len(sizes) or not any(isinstance(size, torch.SymInt) for size in kernel):
        return False
    return all(_expression(one) == _expression(other) for one, other in zip(kernel, sizes, strict=True))


def _expression(size: int | torch.SymInt) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


GLOBAL_POOLING = tuple(
    (f"{kind}_pool{rank}d", _global_pooling(getattr(F, f"adaptive_{kind}_pool{rank}d"), rank))
    for kind in ("avg", "max")
    for rank in (1, 2, 3)
)
"""Pairs of a function name in ``torch.nn.functional`` and its replacement."""


def pooling_output_shape(
    original: Callable[..., Any],
    inputSize: Any,
    kernelSize: Any,
    pad_l: Any,
    pad_r: Any,
    stride: Any,
    dilation: Any,
    ceil_mode: Any,
) -> Any:
    """``pooling_output_shape_pad_lr``: the output size of pooling, as an expression that is valid for every size."""
    if not isinstance(inputSize, torch.SymInt):
        return original(inputSize, kernelSize, pad_l, pad_r, stride, dilation, ceil_mode)
    last = inputSize + pad_l + pad_r - dilation * (kernelSize - 1) - 1
    if not ceil_mode:
        return last // stride + 1
    rounded = (last + stride - 1) // stride + 1
    # Drop a last window that begins after the input; as in torch, at most one window.
    return sym_min(rounded, (inputSize + pad_l - 1) // stride + 1)


def detect_is_causal_mask(
    original: Callable[..., bool], mask: Tensor | None, is_causal: bool | None = None, size: int | None = None
) -> bool:
    """``_detect_is_causal_mask`` of ``nn.TransformerEncoder`` and ``nn.TransformerDecoder``, without reading the mask.

    torch compares the mask with a causal one to choose a kernel; the mask is applied in both cases.
    """
    return is_causal is True


def has_internal_overlap(original: Callable[[Tensor], int], self: Tensor) -> int:
    """``torch._debug_has_internal_overlap``: 1 if elements share memory, 0 if none do, 2 if that is not known."""
    if not any(isinstance(size, torch.SymInt) for size in (*self.shape, *self.stride())):
        return original(self)
    # Only expanded axes have a stride of 0. Their size is compared with 1 by torch.
    is_expanded = any(isinstance(stride, int) and stride == 0 for stride in self.stride())
    return original(self) if is_expanded else 2


def scaled_dot_product_attention(
    original: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: Any = False,
    **options: Any,
) -> Any:
    """``F.scaled_dot_product_attention`` with an ``is_causal`` that may be symbolic.

    transformers passes ``is_causal = length > 1 and mask is None``, which is a SymBool if the length is dynamic. With a
    mask it can only be False; without one the condition is evaluated, which adds a guard. Keys and values have the same
    length, which the shape functions of some kernels do not check: two symbols for one length prevent fusions.
    """
    if isinstance(key.shape[-2], torch.SymInt) and isinstance(value.shape[-2], torch.SymInt):
        check(key.shape[-2] == value.shape[-2])
    if isinstance(is_causal, torch.SymBool):
        is_causal = attn_mask is None and bool(is_causal)
    return original(query, key, value, attn_mask, dropout_p, is_causal, **options)


@dataclass
class FullMasks:
    """Masks of transformers that hide nothing, which only traced models compute.

    Attributes:
        exist: Whether the model asked for such a mask.
        are_skipped: Whether to return None for them, as in eager mode.
    """

    exist: bool = False
    are_skipped: bool = False


def recorded_full_masks(*, are_skipped: bool) -> AbstractContextManager[FullMasks]:
    """Record inside the context whether the model asks for masks that hide nothing, and omit them if requested."""
    return activated(FullMasks(are_skipped=are_skipped))


def ignore_full_mask(
    original: Callable[..., bool], padding_mask: Tensor | None, kv_length: int, local_attention_size: int | None = None
) -> bool:
    """``_ignore_bidirectional_mask_sdpa``: True without padding and without a window, if ``are_skipped``.

    Autoformer and Informer keep such a mask for layers with other lengths, where it does not fit.
    """
    masks = active(FullMasks)
    if masks is not None and padding_mask is None and local_attention_size is None:
        masks.exist = True
        if masks.are_skipped:
            return True
    return original(padding_mask, kv_length, local_attention_size)


def keep_causal_mask(original: Callable[..., bool], padding_mask: Tensor | None, *args: Any, **kwargs: Any) -> bool:
    """``_ignore_causal_mask_sdpa``: False for a traced mask, without asking whether it is longer than the keys."""
    return not isinstance(padding_mask, FakeTensor) and original(padding_mask, *args, **kwargs)


MASK_PATCHES: tuple[Patch, ...] = (
    Patch(
        "transformers.masking_utils:_ignore_bidirectional_mask_sdpa",
        ignore_full_mask,
        "it makes masks that hide nothing if a model is traced, which some models cannot use",
        optional=True,
    ),
    Patch(
        "transformers.masking_utils:_ignore_causal_mask_sdpa",
        keep_causal_mask,
        "it compares the length of a mask with that of the keys, also if a model is traced, where it returns False",
        optional=True,
    ),
)
"""Of transformers; the results are those of the original functions."""


def call_module(_: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """``DistributedDataParallel.forward``: the call of its module, without synchronizing the processes."""
    return self.module(*args, **kwargs)


WRAPPER_PATCHES: tuple[Patch, ...] = (
    Patch(
        "torch.nn.parallel.distributed:DistributedDataParallel.forward",
        call_module,
        "it calls code that torch.compiler.disable hides from torch.export",
        optional=True,
    ),
)
"""Of modules that wrap others."""


def validate_device(original: Callable[..., None], query: Tensor, key: Tensor, value: Tensor) -> None:
    """``_validate_device`` of ``flex_attention``, without the check that no gradient is computed on the CPU."""
    if query.device.type != "cpu":
        original(query, key, value)


def associative_scan(
    original: Callable[..., Any],
    operator: Any,
    leaves: Sequence[Tensor],
    dim: int = 0,
    additional_inputs: Sequence[Any] = (),
) -> Any:
    """``generic_associative_scan``, which halves the length by recursion, as a scan if the length is dynamic."""
    function = operator.keywords.get("combine_fn") if isinstance(operator, partial) else None
    single = inspect.getclosurevars(function).nonlocals.get("func") if inspect.isfunction(function) else None
    if not isinstance(leaves[0].shape[dim], torch.SymInt) or dim != 0 or single is None:
        return original(operator, leaves, dim, additional_inputs)
    # The function before torch.vmap: it takes single elements.
    combine = partial(operator.func, *operator.args, **{**operator.keywords, "combine_fn": single})

    def step(carry: Any, given: Any) -> Any:
        is_first, *totals = carry
        combined = pytree.tree_leaves(combine(*totals, *given, *additional_inputs))
        results = [torch.where(is_first, item, new) for item, new in zip(given, combined, strict=True)]
        return [torch.zeros_like(is_first), *results], [result.clone() for result in results]

    init = [torch.ones((), dtype=torch.bool, device=leaves[0].device), *(leaf.select(0, 0).clone() for leaf in leaves)]
    return scan(step, init, list(leaves))[1]


QUOTIENT_PATCHES: tuple[Patch, ...] = tuple(
    Patch(
        f"torch:{kind}.{name}",
        replacement,
        "the floor of the rounded quotient of a size and a float is not always Python's quotient",
        PatchKind.SOUND,
        strict=False,
    )
    for kind in ("SymInt", "SymFloat")
    for name, replacement in (("__floordiv__", _floor_divide), ("__rfloordiv__", _floor_divide_by))
)


def layout_of_tensor(original: Callable[..., bool], self: torch.Tensor, *args: Any, **kwargs: Any) -> bool:
    """``Tensor.is_contiguous``: the capture has one answer for all sizes, but axes of size 1 have other ones."""
    answer = original(self, *args, **kwargs)
    frame = sys._getframe(2)
    is_of_user = is_user_code(frame.f_code, frame.f_globals)
    is_dynamic = any(isinstance(size, torch.SymInt) for size in self.shape)
    if is_of_user and is_dynamic and (args or kwargs or not _is_always_contiguous(self)):
        record_departure(DepartureKind.INTROSPECTION, "is_contiguous", frame)
    return answer


def _is_always_contiguous(tensor: torch.Tensor) -> bool:
    """Whether a tensor has the strides of a contiguous one for all sizes."""
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not statically_known_true(stride == expected):
            return False
        expected = expected * size
    return True
