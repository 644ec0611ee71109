"""Replacements of torch functions whose own implementation is only valid for the example sizes.

Their Python code branches on sizes or on the values of tensors, or passes sizes to C++ as plain integers, which
specializes them. In order: creation and splitting, broadcasting, pooling, attention, losses, layouts. Each replacement
calls the original for arguments without dynamic sizes.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import (
    guarding_hint_or_throw,
    has_guarding_hint,
    statically_known_true,
)
from torch.nn import functional as F

from fxonnx_translations._torch_compat import arange, check, pytree, scan, sym_max, sym_min

from ..function_transforms import SummedParts, computes_gradients
from ..suspicions.departures import DepartureKind, record_departure
from .patch import FunctionPatch, Patch, PatchKind, TorchFunctionPatch, is_tracing

__all__ = ["FUNCTION_PATCHES", "isin", "pad_sequence", "tensor_split", "unbind"]


def _linspace(original: Callable[..., Tensor], start: Any, end: Any, steps: Any, **options: Any) -> Tensor:
    """``torch.linspace`` with a dynamic number of steps, computed from both ends as torch does."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    if isinstance(steps, Tensor) and is_tracing():
        steps = steps.item()
    if not isinstance(steps, torch.SymInt) or not dtype.is_floating_point or options.get("out") is not None:
        return original(start, end, steps, **options)
    computed = torch.float64 if dtype == torch.float64 else torch.float32
    index: Tensor = arange(steps, dtype=computed, device=options.get("device"))
    share = index / sym_max(steps - 1, 1)
    # As in torch, the second half is computed from the end, so that both ends are exact; a single step is the start.
    from_start = index < sym_max(steps // 2, 2 - steps)
    result = torch.where(from_start, start + (end - start) * share, end - (end - start) * share.flip(0))
    return result.to(dtype)


def _logspace(
    original: Callable[..., Tensor], start: Any, end: Any, steps: Any, base: float = 10.0, **options: Any
) -> Tensor:
    """``torch.logspace`` with a dynamic number of steps: the powers of ``linspace``."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    if not isinstance(steps, torch.SymInt) or not dtype.is_floating_point or options.get("out") is not None:
        return original(start, end, steps, base, **options)
    powers: Tensor = torch.pow(base, _linspace(torch.linspace, start, end, steps, **options))
    return powers


def _frequencies(
    is_real: bool, original: Callable[..., Tensor], n: Any, d: float = 1.0, *, dtype: Any = None, **options: Any
) -> Tensor:
    """``torch.fft.fftfreq`` and ``rfftfreq`` of a dynamic length."""
    if not isinstance(n, torch.SymInt) or options.get("out") is not None:
        return original(n, d, dtype=dtype, **options)
    length: Any = n
    positive = length // 2 + 1 if is_real else (length + 1) // 2
    index = arange(positive if is_real else length, device=options.get("device"))
    index = index if is_real else torch.where(index < positive, index, index - length)
    frequencies: Tensor = index.to(dtype or torch.get_default_dtype()) * (1.0 / (length * d))
    return frequencies


def _as_tensor(original: Callable[..., Tensor], data: Any, *args: Any, **options: Any) -> Tensor:
    """``torch.as_tensor`` of a number of sizes, or of a list with sizes or tensors, as ``torch.tensor``."""
    if not isinstance(data, Tensor) and any(isinstance(item, _SYMBOLIC | Tensor) for item in _items(data)):
        names = ("dtype", "device")[: len(args)]
        return torch.tensor(data, **dict(zip(names, args, strict=True)), **options)
    return original(data, *args, **options)


_SYMBOLIC = torch.SymInt | torch.SymFloat | torch.SymBool


def _tensor(original: Callable[..., Tensor], data: Any, **options: Any) -> Tensor:
    """``torch.tensor`` of numbers some of which are tensors (``[x[0], 2.0]``), whose values torch reads, or sizes.

    torch.export computes it of sizes in the same way, but knows the function by its identity.
    """
    leaves = _items(data)
    is_traced = any(isinstance(item, Tensor | _SYMBOLIC) for item in leaves)
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


def _items(data: Any) -> list[Any]:
    """The items of nested sequences, of any classes of them."""
    return [item for part in data for item in _items(part)] if isinstance(data, list | tuple) else [data]


def _is_number(item: Any) -> bool:
    return item.dim() == 0 if isinstance(item, Tensor) else isinstance(item, bool | int | float | _SYMBOLIC)


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


def _infer_size(original: Callable[..., Any], a: Sequence[Any], b: Sequence[Any]) -> Any:
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


_POOLING_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "avg": {"stride": None, "padding": 0, "ceil_mode": False, "count_include_pad": True, "divisor_override": None},
        "max": {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False},
    }
)


def _pooling(
    kind: str, rank: int, original: Callable[..., Any], input: Tensor, kernel_size: Any, *args: Any, **options: Any
) -> Any:
    """Pooling whose windows or padding have dynamic sizes, which the operators do not take."""
    defaults = _POOLING_DEFAULTS[kind]
    given = {**defaults, **dict(zip(defaults, args, strict=False)), **options}
    stride = given.pop("stride")
    windows, sides = _per_axis(kernel_size, rank), _per_axis(given.pop("padding"), rank)
    is_padded = any(isinstance(size, torch.SymInt) for size in sides)
    if not is_padded and not any(sides):
        given.pop("count_include_pad", None)
    is_plain = all(value == defaults[name] for name, value in given.items())
    if not is_plain or not (is_padded or any(isinstance(size, torch.SymInt) for size in windows)):
        return original(input, kernel_size, *args, **options)
    if is_padded:
        # Zeros that are counted, or values below all others.
        least = 0 if kind == "avg" else -math.inf if input.is_floating_point() else torch.iinfo(input.dtype).min
        padded = F.pad(input, [side for one in reversed(sides) for side in (one, one)], value=least)
        return _pooling(kind, rank, original, padded, kernel_size, stride)
    if not stride and not any(sides) and _covers_input(windows, input.shape[-rank:]):
        return getattr(F, f"adaptive_{kind}_pool{rank}d")(input, 1)
    steps = _per_axis(stride or windows, rank)
    if any(sides) or any(_expression(one) != _expression(other) for one, other in zip(steps, windows, strict=True)):
        return original(input, kernel_size, *args, **options)
    return _pooled_blocks(kind, input, windows)


def _pooled_blocks(kind: str, input: Tensor, windows: Sequence[Any]) -> Tensor:
    """Pooling by windows that lie side by side: each is a block of the input."""
    rank, sizes = len(windows), input.shape[-len(windows) :]
    counts = [size // window for size, window in zip(sizes, windows, strict=True)]
    for axis, (count, window) in enumerate(zip(counts, windows, strict=True)):
        input = input.narrow(axis - rank, 0, count * window)
    blocks = input.reshape(*input.shape[:-rank], *(size for pair in zip(counts, windows, strict=True) for size in pair))
    axes = [*range(1 - 2 * rank, 0, 2)]
    return blocks.mean(axes) if kind == "avg" else blocks.amax(axes)


def _per_axis(sizes: Any, rank: int) -> tuple[Any, ...]:
    given = (*sizes,) if isinstance(sizes, Sequence) else (sizes,)
    return given if len(given) == rank else given[:1] * rank


def _covers_input(windows: Sequence[Any], sizes: Sequence[Any]) -> bool:
    """Whether the sizes of a window are the same expressions as those of the input, which needs no guard."""
    return all(_expression(one) == _expression(other) for one, other in zip(windows, sizes, strict=True))


def _expression(size: int | torch.SymInt) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _pooling_output_shape(
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


def _detect_is_causal_mask(
    original: Callable[..., bool], mask: Tensor | None, is_causal: bool | None = None, size: int | None = None
) -> bool:
    """``_detect_is_causal_mask`` of ``nn.TransformerEncoder`` and ``nn.TransformerDecoder``, without reading the mask.

    torch compares the mask with a causal one to choose a kernel; the mask is applied in both cases.
    """
    return is_causal is True


def _has_internal_overlap(original: Callable[[Tensor], int], self: Tensor) -> int:
    """``torch._debug_has_internal_overlap``: 1 if elements share memory, 0 if none do, 2 if that is not known."""
    if not any(isinstance(size, torch.SymInt) for size in (*self.shape, *self.stride())):
        return original(self)
    # Only expanded axes have a stride of 0. Their size is compared with 1 by torch.
    is_expanded = any(isinstance(stride, int) and stride == 0 for stride in self.stride())
    return original(self) if is_expanded else 2


def _scaled_dot_product_attention(
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
    mask it can only be False. Of one query and key, a causal mask changes nothing: this condition is True for all
    lengths, and another one is evaluated, which adds a guard. Keys and values have the same
    length, which the shape functions of some kernels do not check: two symbols for one length prevent fusions.
    """
    if isinstance(key.shape[-2], torch.SymInt) and isinstance(value.shape[-2], torch.SymInt):
        check(key.shape[-2] == value.shape[-2])
    if isinstance(is_causal, torch.SymBool):
        is_causal = attn_mask is None and (_is_of_several(is_causal, query, key) or bool(is_causal))
    return original(query, key, value, attn_mask, dropout_p, is_causal, **options)


def _is_of_several(condition: torch.SymBool, query: Any, key: Any) -> bool:
    """Whether a condition is that there are several queries, and as many keys."""
    length = query.shape[-2]
    if not isinstance(length, torch.SymInt) or not statically_known_true(length == key.shape[-2]):
        return False
    several: tuple[Any, ...] = (length > 1, length != 1)
    return any(isinstance(one, torch.SymBool) and one.node.expr == condition.node.expr for one in several)


def _validate_device(original: Callable[..., None], query: Tensor, key: Tensor, value: Tensor) -> None:
    """``_validate_device`` of ``flex_attention``, without the check that no gradient is computed on the CPU."""
    if query.device.type != "cpu":
        original(query, key, value)


def _associative_scan(
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


def _one_hot(original: Callable[..., Tensor], tensor: Tensor, num_classes: Any = -1) -> Tensor:
    """``F.one_hot`` with a number of classes that is a size."""
    if not isinstance(num_classes, torch.SymInt):
        return original(tensor, num_classes)
    return (tensor.unsqueeze(-1) == arange(num_classes, device=tensor.device)).to(torch.int64)


def _adaptive_avg_pool1d(original: Callable[..., Tensor], input: Tensor, output_size: Any) -> Tensor:
    """``F.adaptive_avg_pool1d`` with a dynamic size of the result, as the pooling of images of height 1."""
    (size,) = output_size if isinstance(output_size, Sequence) else (output_size,)
    if not isinstance(size, torch.SymInt):
        return original(input, output_size)
    sizes: Any = (1, size)
    return torch.nn.functional.adaptive_avg_pool2d(input.unsqueeze(-2), sizes).squeeze(-2)


def _adaptive_max_pool(
    rank: int, original: Callable[..., Any], input: Tensor, output_size: Any, return_indices: bool = False
) -> Any:
    """``F.adaptive_max_pool2d`` and its relatives with a dynamic size of the result, one axis after the other."""
    sizes = tuple(output_size) if isinstance(output_size, Sequence) else (output_size,) * rank
    # None is the size of the input.
    kept = input.shape[-rank:] if None in sizes and input.dim() > rank else ()
    is_dynamic = any(isinstance(size, torch.SymInt) for size in (*sizes, *kept))
    if not is_dynamic or return_indices or len(sizes) != rank:
        return original(input, output_size, return_indices)
    for axis, size in zip(range(-rank, 0), sizes, strict=True):
        input = input if size is None else _greatest_of_windows(input, axis, size)
    return input


def _greatest_of_windows(x: Tensor, axis: int, count: Any) -> Tensor:
    """The maxima of windows of almost equal lengths that cover an axis; the last element of short ones is repeated."""
    size = x.shape[axis]
    index = arange(count, device=x.device)
    first, last = index * size // count, ((index + 1) * size + count - 1) // count - 1
    # At most ceil(size / count) + 1 elements. It is evident that there are some, also if there are no windows.
    offsets = arange(sym_max((size - 1) // count + 2, 1), device=x.device)
    positions = torch.minimum(first.unsqueeze(1) + offsets, last.unsqueeze(1))
    windows = x.movedim(axis, -1)[..., positions]
    return windows.amax(-1).movedim(-1, axis)


def _triangle_indices(
    is_upper: bool,
    original: Callable[..., Tensor],
    row: Any,
    col: Any,
    offset: Any = 0,
    *,
    dtype: torch.dtype = torch.long,
    device: Any = None,
    **options: Any,
) -> Tensor:
    """``torch.tril_indices`` and ``torch.triu_indices`` of dynamic sizes, as the positions in a mask."""
    if not any(isinstance(number, torch.SymInt) for number in (row, col, offset)):
        return original(row, col, offset, dtype=dtype, device=device, **options)
    differences = arange(col, device=device) - arange(row, device=device).unsqueeze(1)
    below = offset - 1 if is_upper else offset
    found = (differences > below if is_upper else differences <= below).nonzero()
    count = _sum_of_positive(row, below) - _sum_of_positive(row, below - col)
    count = row * col - count if is_upper else count
    check(found.shape[0] == count)
    indices: Tensor = found.T.to(dtype)
    return indices


def _sum_of_positive(count: Any, offset: Any) -> Any:
    """The sum of the positive ones of the numbers from offset + 1 to offset + count."""
    last, before = sym_max(offset + count, 0), sym_max(offset, 0)
    return last * (last + 1) // 2 - before * (before + 1) // 2


def _unbind_outputs(original: Callable[..., Sequence[Tensor]], input: Any, dim: int = 0) -> Sequence[Tensor]:
    """``torch.unbind`` as the outputs of ``torch.autograd.grad``, whose gradient is that of their sum."""
    is_vector = isinstance(input, Tensor) and input.dim() == 1 and isinstance(input.shape[0], torch.SymInt)
    caller = sys._getframe(2)
    if not is_vector or not computes_gradients() or not _is_differentiated(caller.f_code.co_filename, caller.f_lineno):
        return original(input, dim)
    record_departure(DepartureKind.REPLACED, "the outputs of torch.autograd.grad, by their sum", caller)
    summed = SummedParts((input.sum(),))
    summed.parts = partial(original, input, dim)
    return summed


def _is_differentiated(file: str, line: int) -> bool:
    """Whether a line has ``grad(unbind(outputs), inputs)``, with no other parts."""
    lines = linecache.getlines(file)
    if not any("unbind" in text for text in lines[line - 1 : line]):
        return False
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return False
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_at(node, line)]
    gradients = [call for call in calls if _name(call.func) == "grad" and _outputs_are_parts(call)]
    return bool(gradients) and sum(_name(call.func) == "unbind" for call in calls) == 1


def _outputs_are_parts(call: ast.Call) -> bool:
    given = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "outputs")]
    return any(isinstance(value, ast.Call) and _name(value.func) == "unbind" for value in given)


def _is_at(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


_TORCH_FUNCTIONS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("torch:as_tensor", _as_tensor, "it specializes sizes"),
    ("torch:tensor", _tensor, "it reads the values of the tensors in a list"),
    ("torch:linspace", _linspace, "it specializes the number of steps"),
    ("torch:logspace", _logspace, "it specializes the number of steps"),
    ("torch.fft:fftfreq", partial(_frequencies, False), "it specializes the length"),
    ("torch.fft:rfftfreq", partial(_frequencies, True), "it specializes the length"),
    ("torch:unbind", _unbind_outputs, "the number of results is a dynamic size"),
    *(
        (
            f"torch.nn.functional:{kind}_pool{rank}d",
            partial(_pooling, kind, rank),
            "it specializes the sizes of windows and paddings",
        )
        for kind in ("avg", "max")
        for rank in (1, 2, 3)
    ),
)
_IMPORTED_FUNCTIONS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    (".nn.functional:one_hot", _one_hot, "it specializes the number of classes"),
    (".nn.functional:adaptive_avg_pool1d", _adaptive_avg_pool1d, "it specializes the size of its result"),
    *(
        (
            f".nn.functional:adaptive_max_pool{rank}d",
            partial(_adaptive_max_pool, rank),
            "it specializes the size of its result",
        )
        for rank in (1, 2, 3)
    ),
    (":tril_indices", partial(_triangle_indices, False), "it specializes the sizes"),
    (":triu_indices", partial(_triangle_indices, True), "it specializes the sizes"),
)
FUNCTION_PATCHES: tuple[Patch, ...] = (
    *(TorchFunctionPatch(target, replacement, why, strict=False) for target, replacement, why in _TORCH_FUNCTIONS),
    *(FunctionPatch(f"torch{name}", replacement, why, strict=False) for name, replacement, why in _IMPORTED_FUNCTIONS),
    *(
        Patch(target, replacement, why, strict=False)
        for target, replacement, why in (
            (
                "torch:_debug_has_internal_overlap",
                _has_internal_overlap,
                "for writes to a part of a tensor, it compares sizes with 1",
            ),
            (
                "torch.nn.modules.transformer:_detect_is_causal_mask",
                _detect_is_causal_mask,
                "it compares the mask with a causal one, which is a branch on the values of a tensor",
            ),
            (
                "torch._higher_order_ops.associative_scan:generic_associative_scan",
                _associative_scan,
                "it halves the length by recursion, which specializes it",
            ),
        )
    ),
    Patch(
        "torch._subclasses.fake_impls:infer_size",
        _infer_size,
        "torch assumes that a size which may be 1 is not 1, even if it is 1 in the example",
        PatchKind.SOUND,
    ),
    Patch(
        "torch._meta_registrations:pooling_output_shape_pad_lr",
        _pooling_output_shape,
        "with ceil_mode it branches on the size, which is only valid for the example",
    ),
    FunctionPatch(
        "torch.nn.functional:scaled_dot_product_attention",
        _scaled_dot_product_attention,
        "transformers passes an is_causal that depends on a size, but the C++ function only takes a bool",
    ),
    Patch(
        "torch.nn.attention.flex_attention:_validate_device",
        _validate_device,
        "flex_attention raises on the CPU if weights require gradients, which an export does not compute",
    ),
)
"""Applied during captures."""
