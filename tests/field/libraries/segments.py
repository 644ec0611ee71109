"""Encoders, prompts and memories of segmentation."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from ..row import Calls, Model, make, models, rand, randint, randn

_BATCH = {0: "batch"}
_POINTS = {0: "batch", 1: "points"}


def _pictures(size: int) -> Calls:
    return [(randn(batch, 3, size, size),) for batch in (2, 1, 3)]


def _sam2(call: Callable[..., Any], calls: Calls, *dims: Any) -> Model:
    build = import_module("sam2.build_sam").build_sam2
    model = build("configs/sam2.1/sam2.1_hiera_t.yaml", device="cpu", hydra_overrides_extra=["model.image_size=256"])
    return Model(model, calls, dims, call=call)


def _features(model: Any, picture: Any) -> Any:
    found = model.forward_image(picture)
    return found["vision_features"], found["backbone_fpn"]


def _prompts() -> Calls:
    """Features of a picture in three resolutions, points in it, and their labels."""
    features = randn(1, 256, 16, 16), randn(1, 32, 64, 64), randn(1, 64, 32, 32)
    return [(*features, rand(b, n, 2) * 256, randint(2, b, n)) for b, n in ((2, 3), (1, 1), (3, 5))]


def _masks(*, several: bool) -> Model:
    def call(model: Any, features: Any, fine: Any, middle: Any, points: Any, labels: Any) -> Any:
        sparse, dense = model.sam_prompt_encoder(points=(points, labels), boxes=None, masks=None)
        return model.sam_mask_decoder(
            image_embeddings=features, image_pe=model.sam_prompt_encoder.get_dense_pe(), sparse_prompt_embeddings=sparse,
            dense_prompt_embeddings=dense, multimask_output=several, repeat_image=True, high_res_features=[fine, middle],
        )  # fmt: skip

    return _sam2(call, _prompts(), {}, {}, {}, _POINTS, _POINTS)


def _remembered() -> Model:
    def call(model: Any, picture: Any, memory: Any, places: Any, places_of_memory: Any) -> Any:
        given = {"curr": [picture], "curr_pos": [places], "memory": memory, "memory_pos": places_of_memory}
        return model.memory_attention(**given, num_obj_ptr_tokens=4)

    sizes = ((1, 260), (2, 516), (1, 772))
    calls = [
        (randn(256, b, 256), randn(n, b, 64), randn(256, b, 256, seed=1), randn(n, b, 64, seed=1)) for b, n in sizes
    ]
    memory = {0: "memory", 1: "batch"}
    return _sam2(call, calls, {1: "batch"}, memory, {1: "batch"}, memory)


def _memory(model: Any, features: Any, masks: Any) -> Any:
    found = model.memory_encoder(features, masks, skip_mask_sigmoid=True)
    return found["vision_features"], found["vision_pos_enc"]


SAM2 = models(
    "sam2",
    {
        "image_encoder": lambda: _sam2(_features, _pictures(256), _BATCH),
        "mask_decoder": lambda: _masks(several=True),
        "mask_decoder.single": lambda: _masks(several=False),
        "memory_attention": _remembered,
        "memory_encoder": lambda: _sam2(_memory, [(randn(b, 256, 16, 16), randn(b, 1, 256, 256)) for b in (2, 1, 3)], _BATCH, _BATCH),
    },
)  # fmt: skip


def _sam(size: int = 128) -> Any:
    parts = import_module("segment_anything.modeling")
    encoder = parts.ImageEncoderViT(
        img_size=size, patch_size=16, embed_dim=32, depth=2, num_heads=2, out_chans=32, use_rel_pos=True, window_size=3, global_attn_indexes=(1,)
    )  # fmt: skip
    side = size // 16
    prompts = parts.PromptEncoder(
        embed_dim=32, image_embedding_size=(side, side), input_image_size=(size, size), mask_in_chans=4
    )
    transformer = parts.TwoWayTransformer(depth=1, embedding_dim=32, mlp_dim=32, num_heads=2)
    decoder = parts.MaskDecoder(transformer_dim=32, transformer=transformer, iou_head_hidden_dim=32)
    return parts.Sam(image_encoder=encoder, prompt_encoder=prompts, mask_decoder=decoder)


def _sam_onnx() -> Model:
    """The library's own model for ONNX; its ``orig_im_size`` are numbers of the picture."""
    model = import_module("segment_anything.utils.onnx").SamOnnxModel(_sam(), return_single_mask=False)
    size = torch.tensor([96.0, 128.0])
    calls = [
        (randn(1, 32, 8, 8), rand(1, n, 2) * 128, randint(2, 1, n).float(), randn(1, 1, 32, 32), rand(1), size)
        for n in (2, 1, 5)
    ]
    return Model(model, calls, ({}, {1: "points"}, {1: "points"}, {}, {}, {}))


SEGMENT_ANYTHING = models(
    "segment-anything",
    {
        "SamOnnxModel": _sam_onnx,
        "image_encoder": lambda: Model(_sam().image_encoder, _pictures(128), (_BATCH,)),
    },
)


def _hiera() -> Model:
    model = make(
        "hiera.Hiera", input_size=(64, 64), embed_dim=16, num_heads=1, stages=(1, 1, 1, 1), q_pool=2, mask_unit_size=(4, 4), num_classes=5
    )  # fmt: skip
    return Model(model, _pictures(64), (_BATCH,))


HIERA = models("hiera-transformer", {"Hiera": _hiera})
