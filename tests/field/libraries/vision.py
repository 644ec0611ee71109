"""Vision transformers: of pictures, films and lines, two blocks deep."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from ..row import Calls, Model, models, randn
from ..samples import HW, pictures

_PICTURE = {"image_size": 32, "patch_size": 8}
_NETWORK: dict[str, Any] = {"num_classes": 5, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 32}
_SMALL = {"dim_head": 16, **_NETWORK}
_BATCH = ({0: "batch"},)


def _make(module: str, name: str, **options: Any) -> Any:
    return getattr(import_module(f"vit_pytorch.{module}"), name)(**options)


def _vit(module: str, name: str = "ViT", **options: Any) -> Model:
    """A model of pictures with one size."""
    calls = [(pictures(b, 32, 32),) for b in (2, 1, 3)]
    return Model(_make(module, name, **{**_PICTURE, **_SMALL, **options}), calls, _BATCH)


def _windowed(module: str, name: str, *sizes: tuple[int, int, int], **options: Any) -> Model:
    """A model of pictures of any size that its windows divide."""
    calls: Calls = [(pictures(*size),) for size in sizes or ((1, 64, 64), (2, 64, 128), (1, 128, 64))]
    return Model(_make(module, name, num_classes=5, **options), calls, (HW,))


def _film(module: str, name: str, **options: Any) -> Model:
    calls = [(randn(b, 3, 4, 32, 32),) for b in (2, 1, 3)]
    sizes = {"image_size": 32, "image_patch_size": 8, "frames": 4, "frame_patch_size": 2}
    wanted = {**sizes, **_SMALL, **options}
    return Model(
        _make(module, name, **{key: value for key, value in wanted.items() if value is not None}), calls, _BATCH
    )


def _line(module: str, name: str) -> Model:
    calls = [(randn(b, 3, 64),) for b in (2, 1, 3)]
    return Model(_make(module, name, seq_len=64, patch_size=8, **_SMALL), calls, _BATCH)


def _batches(module: str, name: str, size: int, **options: Any) -> Model:
    """A model with arguments of its own."""
    calls = [(pictures(b, size, size),) for b in (2, 1, 3)]
    return Model(_make(module, name, **options), calls, _BATCH)


_CVT = {
    f"s{stage}_{name}": value
    for stage in (1, 2, 3)
    for name, value in {"emb_dim": 16 * stage, "heads": 1, "depth": 1}.items()
}

MODELS = models(
    "vit-pytorch",
    {
        "CaiT": partial(_vit, "cait", "CaiT", cls_depth=1),
        "CCT": partial(
            _batches, "cct", "CCT", 32, img_size=32, embedding_dim=32, n_conv_layers=2, num_layers=2, num_heads=2, mlp_ratio=2,
            num_classes=5,
        ),
        "CrossViT": partial(
            _batches, "cross_vit", "CrossViT", 32, image_size=32, num_classes=5, sm_dim=16, lg_dim=32, sm_patch_size=4,
            lg_patch_size=8, depth=1, sm_enc_mlp_dim=32, lg_enc_depth=1, lg_enc_mlp_dim=32, cross_attn_depth=1,
        ),
        "CvT": partial(_windowed, "cvt", "CvT", (1, 64, 64), (2, 64, 96), (1, 72, 50), **_CVT),
        "DeepViT": partial(_vit, "deepvit", "DeepViT"),
        "JumboViT": partial(_vit, "jumbo_vit", "JumboViT", jumbo_cls_k=2),
        "LeViT": partial(
            _batches, "levit", "LeViT", 64, image_size=64, num_classes=5, dim=(16, 16, 32), depth=1, heads=(1, 1, 2), mlp_mult=2,
            dim_key=8, dim_value=8,
        ),
        "LookViT": partial(
            _batches, "look_vit", "LookViT", 32, dim=32, image_size=32, num_classes=5, depth=1, patch_size=16, heads=2,
            highres_patch_size=8, cross_attn_heads=2,
        ),
        "MaxViT": partial(
            _windowed, "max_vit", "MaxViT", (1, 64, 64), (2, 64, 64), (1, 128, 64), dim=16, depth=(1, 1), dim_head=8, window_size=4
        ),
        "MobileViT": partial(
            _batches, "mobile_vit", "MobileViT", 64, image_size=(64, 64), dims=[16, 16, 16],
            channels=[8, 8, 16, 16, 16, 16, 16, 16, 16, 16, 32], num_classes=5, depths=(1, 1, 1),
        ),
        "NesT": partial(
            _batches, "nest", "NesT", 32, image_size=32, patch_size=4, dim=16, heads=2, num_hierarchies=2, block_repeats=(1, 1),
            num_classes=5,
        ),
        "nViT": partial(_vit, "normalized_vit", "nViT"),
        "parallel_vit": partial(_vit, "parallel_vit"),
        "PiT": partial(_vit, "pit", "PiT", depth=(1, 1)),
        "RvT": partial(_vit, "rvt", "RvT"),
        "ScalableViT": partial(
            _windowed, "scalable_vit", "ScalableViT", dim=16, depth=(1, 1), heads=(1, 2), reduction_factor=(2, 2), window_size=(4, 4)
        ),
        "SimpleUViT": partial(_vit, "simple_uvit", "SimpleUViT"),
        "SimpleViT_3d": partial(_film, "simple_vit_3d", "SimpleViT"),
        "SimpleViT_with_fft": partial(_vit, "simple_vit_with_fft", "SimpleViT", freq_patch_size=8),
        "SimpleViT_with_hyper_connections": partial(
            _vit, "simple_vit_with_hyper_connections", "SimpleViT", num_residual_streams=2
        ),
        "SimpleViT_with_value_residual": partial(_vit, "simple_vit_with_value_residual", "SimpleViT"),
        "T2TViT": partial(
            _batches, "t2t", "T2TViT", 32, image_size=32, **_SMALL, t2t_layers=((7, 4), (3, 2))
        ),
        "vit_1d": partial(_line, "vit_1d", "ViT"),
        "vit_5": partial(_vit, "vit_5"),
        "vit_for_small_dataset": partial(_vit, "vit_for_small_dataset"),
        "vit_with_patch_merger": partial(_vit, "vit_with_patch_merger", patch_merge_num_tokens=4),
        "ViViT": partial(_film, "vivit", "ViViT", depth=None, spatial_depth=1, temporal_depth=1),
        "XCiT": partial(_vit, "xcit", "XCiT", cls_depth=1),
    },
)  # fmt: skip
