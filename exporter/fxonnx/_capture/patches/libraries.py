"""Replacements of functions of transformers, torchao and einx that need sizes, or ask tensors for their values.

Each computes the same for all values, without a branch or a loop over the batch. Functions that read values are
captured as they are if the values are known, or if the export follows the example.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from threading import get_ident
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import has_guarding_hint, statically_known_true

from fxonnx_translations._torch_compat import FakeTensor, arange, check, pytree, sym_float, sym_int, sym_max

from ..._context_values import activated, active
from ..data_dependence.concrete_values import is_open
from ..suspicions.departures import DepartureKind, record_departure
from .patch import FunctionPatch, Patch

__all__ = [
    "COMPILER_PATCHES",
    "LIBRARY_PATCHES",
    "TRANSFORMERS_VISION_PATCHES",
    "FullMasks",
    "attend_within_lengths",
    "attend_within_segments",
    "attention_function",
    "recorded_full_masks",
]


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


def call_module(_: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """``DistributedDataParallel.forward``: the call of its module, without synchronizing the processes."""
    return self.module(*args, **kwargs)


def length_regulator(
    original: Callable[..., Tensor], encoded_embeddings: Tensor, duration_labels: Tensor, speaking_speed: float = 1.0
) -> Tensor:
    """``length_regulator`` without a branch on the durations and without a loop over the batch."""
    if speaking_speed <= 0:
        return original(encoded_embeddings, duration_labels, speaking_speed)
    if speaking_speed != 1.0:
        duration_labels = torch.round(duration_labels.float() * speaking_speed).long()
    # As in the original, the caller's durations change if all are 0.
    duration_labels.copy_(torch.where(duration_labels.sum() == 0, 1, duration_labels))
    ends = duration_labels.cumsum(1)
    lengths = ends[:, -1]
    longest: Any = lengths.max().item()
    check(longest >= 0)
    steps = arange(longest, device=ends.device)
    # The token of a step is the number of tokens that end before it.
    token = (ends[:, None, :] <= steps[None, :, None]).sum(2).clamp(max=ends.shape[1] - 1)
    repeated = encoded_embeddings.gather(1, token[..., None].expand(-1, -1, encoded_embeddings.shape[2]))
    return torch.where((steps < lengths[:, None])[..., None], repeated.float(), 0.0)


def position_table(original: Callable[..., Any], self: Any, x: Tensor, pos_enc: Tensor | None = None) -> Any:
    """``extend_pos_enc``: the stored table of positions, which must be long enough for an unbacked length."""
    if pos_enc is not None and not has_guarding_hint(x.size(1)):
        check(x.size(1) * 2 - 1 <= pos_enc.size(1))
    return original(self, x, pos_enc)


def reduction_axes(original: Callable[..., Any], block_size: Sequence[Any], input_size: Sequence[Any]) -> Any:
    """``_get_reduction_params`` without guards on dynamic sizes: the shape by blocks, and the axes within blocks.

    torch specializes sizes other than 1 where a block is one element or the whole axis: the reduction over an axis of
    size 1 returns its elements.
    """
    shape: list[Any] = []
    inner: list[int] = []
    for block, size in zip(block_size, input_size, strict=True):
        if isinstance(block, int) and block == 1:
            shape.append(size)
        elif statically_known_true(block == size):
            inner.append(len(shape))
            shape.append(size)
        elif isinstance(block, int) and isinstance(size, int):
            parts, axes = original([block], [size])
            inner.extend(len(shape) + axis for axis in axes)
            shape.extend(parts)
        else:
            return original(block_size, input_size)
    return shape, inner


def int_scaled_matmul(original: Callable[..., Tensor], a: Tensor, b: Tensor, scales1: Tensor) -> Tensor:
    """``int_scaled_matmul`` on the CPU with one scale, without its assertion on the number of rows."""
    from torchao.kernel.intmm import _int_scaled_matmul_cpu

    if scales1.device.type == "cpu" and tuple(scales1.shape) == (1, 1):
        product: Tensor = _int_scaled_matmul_cpu(a, b, scales1)
        return product
    return original(a, b, scales1)


def convert_size(original: Callable[[Any], Any], x: Any) -> Any:
    """``torch_int`` and ``torch_float``, except that the integer or the float of a symbolic number stays symbolic."""
    if not isinstance(x, torch.SymInt | torch.SymFloat):
        return original(x)
    return sym_int(x) if original.__name__ == "torch_int" else sym_float(x)


def make_padding_mask(original: Callable[..., Any], input_ids: Tensor, padding_idx: int = 1) -> Any:
    """``make_padding_mask`` of FSMT, which returns None in place of a mask that hides nothing."""
    return input_ids.eq(padding_idx) if is_open(input_ids) else original(input_ids, padding_idx)


def attend(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Longformer's attention with global tokens, of which there may be none.

    Without global tokens transformers skips their attention, which has no effect on the result. The other parameters
    differ between versions of transformers.
    """
    call = inspect.signature(original).bind(*args, **kwargs)
    if is_open(call.arguments.get("is_global_attn")) and not call.arguments.get("output_attentions"):
        call.arguments["is_global_attn"] = True
    return original(*call.args, **call.kwargs)


def global_indices(original: Callable[..., Any], is_index_global_attn: Tensor) -> Any:
    """``_get_global_attn_indices`` with the largest number of global tokens as a number, not a tensor."""
    if not is_open(is_index_global_attn):
        return original(is_index_global_attn)
    counts = is_index_global_attn.long().sum(dim=1)
    # At least 1, since ONNX Runtime crashes on empty scores; a place without a token is masked.
    largest: Any = counts.max().clamp(min=1).item()
    check(largest >= 1)
    check(largest <= is_index_global_attn.shape[1])
    is_local = arange(largest, device=counts.device) < counts[:, None]
    chosen, local = is_index_global_attn.nonzero(as_tuple=True), is_local.nonzero(as_tuple=True)
    check(chosen[0].shape[0] == local[0].shape[0])
    return largest, chosen, local, is_local.logical_not().nonzero(as_tuple=True)


def combine_image_text_embeddings(
    original: Callable[..., tuple[Tensor, Tensor, Tensor | None]],
    image_embeddings: Tensor,
    inputs_embeds: Tensor,
    bbox: Tensor,
    visual_bbox: Tensor | None,
    attention_mask: Tensor | None = None,
    num_patches: int = 14,
    max_len: int = 0,
    image_size: Any = 224,
    patch_size: Any = 16,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """UDOP's sequence of text and image: the patches without text follow, in their order, and then padding.

    The patch below a token, of [batch, patches, width], is added to its embedding, of [batch, tokens, width]. Boxes are
    [batch, tokens, 4], from 0 to 1. A ``max_len`` of 0 keeps all patches after the tokens.
    """
    if not is_open(bbox):
        return original(
            *(image_embeddings, inputs_embeds, bbox, visual_bbox, attention_mask),
            *(num_patches, max_len, image_size, patch_size),
        )
    batch, patches, width = image_embeddings.shape
    column, row = (
        torch.clip(
            torch.floor((bbox[:, :, axis] + bbox[:, :, axis + 2]) / 2.0 * num_patches).long(), 0, num_patches - 1
        )
        for axis in (0, 1)
    )
    below = column + row * num_patches
    bbox = bbox.to(torch.float64)
    center = bbox.mean(-1)
    is_special = (center == 0.0) | (center == 1.0)
    added = image_embeddings.gather(1, below[..., None].expand(-1, -1, width))
    inputs_embeds += added.masked_fill(is_special[..., None], 0.0)

    is_free = torch.ones_like(image_embeddings[:, :, 0], dtype=torch.bool).scatter(1, below, False)
    order = is_free.to(torch.int64).argsort(dim=1, descending=True, stable=True)
    is_kept = arange(patches, device=is_free.device) < is_free.sum(1)[:, None]
    if visual_bbox is None:
        boxes_of_patches = import_module(original.__module__).get_visual_bbox
        visual_bbox = boxes_of_patches(image_size=image_size, patch_size=patch_size)[None].expand(batch, -1, -1)

    length = patches if max_len == 0 else max_len - inputs_embeds.shape[1]

    def selected(values: Tensor) -> Tensor:
        found = values.gather(1, order[..., None].expand(-1, -1, values.shape[2]))
        found = found.masked_fill(~is_kept[..., None], 0)
        return found if max_len == 0 else F.pad(found, (0, 0, 0, sym_max(length - patches, 0)))[:, :length]

    inputs_embeds = torch.cat([inputs_embeds, selected(image_embeddings)], 1)
    bbox = torch.cat([bbox, selected(visual_bbox)], 1)
    if attention_mask is not None:
        visible = selected(torch.ones_like(is_free, dtype=attention_mask.dtype)[..., None])[..., 0]
        attention_mask = torch.cat([attention_mask, visible], 1)
    return inputs_embeds, bbox, attention_mask


def visual_embed(
    original: Callable[..., Any], self: Any, pixel_values: Tensor, pixel_mask: Tensor, max_image_length: Any = 200
) -> Any:
    """ViLT's embedding of the patches of images of different sizes: first the image's, and then padding.

    transformers takes both in a random order, which has no effect on the other tokens. With ``max_image_length``, it
    takes a random part of the patches: this is left to transformers.
    """
    if not is_open(pixel_mask) or (isinstance(max_image_length, int) and max_image_length >= 0):
        return original(self, pixel_values, pixel_mask, max_image_length)
    x = self.patch_embeddings(pixel_values)
    batch, channels, height, width = x.shape
    mask = F.interpolate(pixel_mask[:, None].float(), size=(height, width)).long()[:, 0]
    heights, widths = mask.sum(1)[:, 0], mask.sum(2)[:, 0]
    side = self.config.image_size // self.config.patch_size
    table = self.position_embeddings[:, 1:].transpose(1, 2).view(1, channels, side, side)
    positions = _stretched(heights, height, side)[:, None] @ table @ _stretched(widths, width, side).mT[:, None]

    mask = mask.flatten(1)
    longest: Any = (heights * widths).max().item()
    check(longest >= 1)
    check(longest <= mask.shape[1])
    order = mask.argsort(dim=1, descending=True, stable=True)[:, :longest]

    def selected(values: Tensor) -> Tensor:
        values = values.flatten(2).transpose(1, 2)
        return values.gather(1, order[..., None].expand(-1, -1, values.shape[2]))

    rows, columns = (arange(size, device=x.device) for size in (height, width))
    grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))[None].expand(batch, -1, -1, -1)
    first = self.position_embeddings[:, :1].expand(batch, -1, -1)
    x = torch.cat((self.cls_token.expand(batch, -1, -1), selected(x)), 1)
    x = self.dropout(x + torch.cat((first, selected(positions)), 1))
    mask = torch.cat([mask.new_ones(batch, 1), mask.gather(1, order)], 1)
    return x, mask, (selected(grid), (height, width))


def _stretched(lengths: Tensor, size: Any, source: int) -> Tensor:
    """Weights [batch, size, source] of linear interpolation with aligned corners to a length per image, and zeros."""
    steps = arange(size, device=lengths.device)
    places = steps * ((source - 1) / (lengths - 1).clamp(min=1))[:, None]
    weights = (1 - (places[:, :, None] - arange(source, device=lengths.device)).abs()).clamp(min=0)
    return torch.where((steps < lengths[:, None])[..., None], weights, 0.0)


_NAME = "flash_attention_in_fxonnx"
"""Beginning of the function's name; modules pass ``cu_seqlens`` to implementations of flash attention only."""


@contextmanager
def attention_function(module: nn.Module, function: Callable[..., tuple[Tensor, None]]) -> Iterator[None]:
    """In the body, the attention layers of a module call a function.

    The function gets the layer, query, key and value, and keyword arguments. Configurations are restored afterwards.
    """
    functions = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    found: list[Any] = [each.config for each in module.modules() if hasattr(each, "config")]
    configs = {id(config): config for config in found}.values()
    before = [config._attn_implementation_internal for config in configs]
    name = f"{_NAME}_{get_ident()}"
    functions[name] = function
    for config in configs:
        config._attn_implementation_internal = name
    try:
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation
        del functions[name]


def encode(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``forward`` of a vision tower; its other parameters differ between models."""
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    tower = given["self"]
    # Other implementations take the lengths of the segments, for example from the caller of a part of a model.
    if tower.config._attn_implementation not in ("eager", "sdpa") or not is_open(given["grid_thw"]):
        return original(*args, **kwargs)
    with attention_function(tower, attend_within_lengths):
        return original(*args, **kwargs)


def attend_within_lengths(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, cu_seq_lens_q: Tensor, **options: Any
) -> tuple[Tensor, None]:
    """Attention within segments, given by their cumulative lengths."""
    segments = (arange(query.shape[2], device=query.device)[:, None] >= cu_seq_lens_q).sum(1)
    return attend_within_segments(module, query, key, value, cu_seq_lens_q=segments, **options)


def attend_within_segments(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scaling: float,
    cu_seq_lens_q: Tensor,
    **_unused: Any,
) -> tuple[Tensor, None]:
    """Attention within segments, whose numbers for all positions are given in place of cumulative lengths."""
    mask = cu_seq_lens_q[:, None] == cu_seq_lens_q
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return output.transpose(1, 2), None


def get_vision_window_index(
    original: Callable[..., Any],
    grid_thw: Tensor,
    spatial_merge_size: int,
    window_size: int,
    patch_size: int,
    kwargs: Any = None,
) -> Any:
    """The order of merged patches by windows, and the cumulative lengths of windows that are not empty.

    transformers pads the grids to whole windows; sorting by the number of the window gives the same order.
    """
    if not is_open(grid_thw) or (kwargs and {"window_index", "cu_window_seqlens"} & kwargs.keys()):
        return original(grid_thw, spatial_merge_size, window_size, patch_size, kwargs)
    side = window_size // spatial_merge_size // patch_size
    numbers, first = [], 0
    values: Any = grid_thw.tolist()
    for frames, height, width in values:
        rows, columns = arange(height // spatial_merge_size), arange(width // spatial_merge_size)
        down, across = height // spatial_merge_size // side + 1, width // spatial_merge_size // side + 1
        number = (arange(frames)[:, None, None] * down + (rows // side)[:, None]) * across + columns // side
        numbers.append(number.flatten() + first)
        first = first + frames * down * across
    ordered, window_index = torch.cat(numbers).sort(stable=True)
    (ends,) = (ordered[1:] != ordered[:-1]).nonzero(as_tuple=True)
    lengths = torch.cat([torch.zeros(1, dtype=torch.int64), ends + 1, torch.tensor([ordered.shape[0]])])
    return window_index, (lengths * spatial_merge_size**2).to(torch.int32)


_STAND_INS = (1009, 1193, 1423, 1693, 2011, 2389, 2843, 3389, 4027, 4787, 5701, 6779)
"""Prime numbers in the place of dynamic sizes: a product tells its factors."""


def split_tensors(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``_split_tensors`` of einx, which notes a number in the place of each dynamic size.

    einx compiles a function for the sizes of its tensors; ``compile_for_sizes`` makes it one for all sizes.
    """
    found = original(*args, **kwargs)
    known: dict[Any, int] = {}
    for argument in pytree.tree_leaves(found[:2]):
        value = getattr(argument, "value", None)
        if not isinstance(value, Tensor) or not any(isinstance(size, torch.SymInt) for size in value.shape):
            continue
        for size in value.shape:
            if isinstance(size, torch.SymInt) and len(known) < len(_STAND_INS):
                known.setdefault(size.node.expr, _STAND_INS[len(known)])
        argument.sizes = [
            known.get(size.node.expr, size) if isinstance(size, torch.SymInt) else size for size in value.shape
        ]
        record_departure(DepartureKind.REPLACED, "a function that einx compiles for some sizes")
    return found


def to_tracer(original: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    """``_to_tracer`` of einx: a tensor of the sizes that ``split_tensors`` has noted."""
    sizes = getattr(x, "sizes", None)
    if sizes is None:
        return original(x, *args, **kwargs)
    return import_module("einx._src.tracer").signature.classical.Tensor(None, shape=sizes)


def compile_for_sizes(original: Callable[..., Any], graph: Any, return_code: bool = False) -> Any:
    """``compile`` of einx: a function whose constants are those for the sizes of the tensors in each call."""
    function, code = original(graph, return_code=True)
    places = {
        size: (at, axis)
        for at, tensor in enumerate(getattr(graph, "inputs", ()))
        for axis, size in enumerate(tensor.shape or ())
        if size in _STAND_INS
    }
    if places and isinstance(function, FunctionType):
        function = partial(_call_at_sizes, function, places)
    return (function, code) if return_code else function


def _call_at_sizes(function: FunctionType, places: Mapping[int, tuple[int, int]], *tensors: Tensor) -> Any:
    sizes = {number: tensors[at].shape[axis] for number, (at, axis) in places.items()}
    code = function.__code__
    code = code.replace(co_consts=tuple(_with_sizes(each, sizes) for each in code.co_consts))
    return FunctionType(code, function.__globals__)(*tensors)


def _with_sizes(constant: Any, sizes: Mapping[int, Any]) -> Any:
    """A constant with the sizes in place of the numbers that stand for them."""
    if isinstance(constant, tuple):
        return tuple(_with_sizes(each, sizes) for each in constant)
    if type(constant) is not int or not constant:
        return constant
    factor: Any = 1
    for number, size in sizes.items():
        while constant % number == 0:
            factor, constant = factor * size, constant // number
    return factor * constant


_MODELS = "transformers.models"
_FASTSPEECH = f"{_MODELS}.fastspeech2_conformer.modeling_fastspeech2_conformer"
_TOWERS = (
    *("cohere_compass:CohereCompassVisionModel", "exaone4_5:Exaone4_5_VisionModel", "glm4v:Glm4vVisionModel"),
    *("glm4v_moe:Glm4vMoeVisionModel", "glm5_next:Glm5NextVisionModel", "glm_ocr:GlmOcrVisionModel"),
    *("qwen2_vl:Qwen2VisionTransformerPretrainedModel", "qwen2_5_omni:Qwen2_5OmniVisionEncoder"),
    *("qwen2_5_vl:Qwen2_5_VisionTransformerPretrainedModel", "qwen3_vl:Qwen3VLVisionModel"),
    *("qwen3_vl_moe:Qwen3VLMoeVisionModel", "qwen3_omni_moe:Qwen3OmniMoeVisionEncoder"),
    *("qwen3_5:Qwen3_5VisionModel", "qwen3_5_moe:Qwen3_5MoeVisionModel", "qwen4_exp:Qwen4ExpVisionModel"),
    "paddleocr_vl:PaddleOCRVisionTransformer",
)

TRANSFORMERS_VISION_PATCHES: tuple[Patch, ...] = tuple(
    Patch(f"{_MODELS}.{package}.modeling_{package}:{name}", replacement, why, strict=False, optional=True, departs=True)
    for package, name, replacement, why in (
        *(
            (package, f"{tower}.forward", encode, "it splits patches by the values of a tensor")
            for package, _, tower in (name.partition(":") for name in _TOWERS)
        ),
        *(
            (
                package,
                "get_vision_window_index",
                get_vision_window_index,
                "it makes Python lists of the values of a tensor",
            )
            for package in ("exaone4_5", "qwen2_5_omni", "qwen2_5_vl")
        ),
    )
)

LIBRARY_PATCHES: tuple[Patch, ...] = (
    *(
        Patch(target, replacement, why, optional=True)
        for target, replacement, why in (
            (
                "transformers.masking_utils:_ignore_bidirectional_mask_sdpa",
                ignore_full_mask,
                "it makes masks that hide nothing if a model is traced, which some models cannot use",
            ),
            (
                "transformers.masking_utils:_ignore_causal_mask_sdpa",
                keep_causal_mask,
                "it compares the length of a mask with that of the keys, also if a model is traced, where it returns "
                "False",
            ),
            (
                "torch.nn.parallel.distributed:DistributedDataParallel.forward",
                call_module,
                "it calls code that torch.compiler.disable hides from torch.export",
            ),
        )
    ),
    *(
        FunctionPatch(
            f"transformers.utils.generic:{name}",
            convert_size,
            "it converts sizes to numbers, which specializes them",
            optional=True,
            departs=True,
        )
        for name in ("torch_int", "torch_float")
    ),
    *(
        Patch(target, replacement, why, optional=True, departs=True)
        for target, replacement, why in (
            (
                f"{_FASTSPEECH}:length_regulator",
                length_regulator,
                "it branches on the predicted durations and loops over the batch",
            ),
            (
                f"{_FASTSPEECH}:FastSpeech2ConformerRelPositionalEncoding.extend_pos_enc",
                position_table,
                "it branches on the number of frames, which is unbacked",
            ),
            (
                "torchao.quantization.quant_primitives:_get_reduction_params",
                reduction_axes,
                "it branches on whether dynamic sizes are 1 or a block's",
            ),
            (
                "torchao.quantization.quantize_.workflows.int8.int8_tensor:int_scaled_matmul",
                int_scaled_matmul,
                "it asserts that a dynamic number of rows is the scales', which specializes it",
            ),
        )
    ),
    *(
        Patch(f"{_MODELS}.{name}", replacement, why, strict=False, optional=True, departs=True)
        for name, replacement, why in (
            ("fsmt.modeling_fsmt:make_padding_mask", make_padding_mask, "it branches on whether there is padding"),
            *(
                row
                for owner in (
                    "longformer.modeling_longformer:LongformerSelfAttention",
                    "led.modeling_led:LEDEncoderSelfAttention",
                )
                for row in (
                    (f"{owner}.forward", attend, "it branches on whether there are global tokens"),
                    (
                        f"{owner}._get_global_attn_indices",
                        global_indices,
                        "it takes a tensor as a size, each time anew",
                    ),
                )
            ),
            (
                "udop.modeling_udop:combine_image_text_embeddings",
                combine_image_text_embeddings,
                "it pads a list of selected patches",
            ),
            (
                "vilt.modeling_vilt:ViltEmbeddings.visual_embed",
                visual_embed,
                "it loops over the sizes of images and over selected patches",
            ),
        )
    ),
    *TRANSFORMERS_VISION_PATCHES,
)
"""Applied if the libraries are imported; those that ``departs`` marks compute by other means."""

COMPILER_PATCHES: tuple[Patch, ...] = tuple(
    Patch(target, replacement, "it compiles functions for the sizes of tensors", strict=False, optional=True)
    for target, replacement in (
        ("einx._src.frontend.api:_split_tensors", split_tensors),
        ("einx._src.frontend.api:_to_tracer", to_tracer),
        ("einx._src.tracer.compiler.python:compile", compile_for_sizes),
    )
)
"""Applied where conversions of sizes limit the inputs, if the libraries are imported."""
