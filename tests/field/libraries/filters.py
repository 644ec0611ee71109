"""Filters, transforms and detectors of pictures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ..row import Calls, Model, models, randn
from ..samples import HW, gray, pictures

_SIZES = ((1, 48, 48), (2, 64, 40), (1, 37, 53))


def _kornia(
    path: str,
    *more: Any,
    make: Callable[..., torch.Tensor] = pictures,
    dims: Any = HW,
    sizes: Any = _SIZES,
    **options: Any,
) -> Model:
    """A function of a picture."""
    room, _, name = path.rpartition(".")
    function = getattr(import_module(f"kornia.{room}"), name)
    return Model(
        nn.Identity(), [(make(*size),) for size in sizes], (dims,), call=lambda _, x: function(x, *more, **options)
    )


_SQUARE = (3, 3)
_FIXED = ((1, 48, 48), (2, 48, 48), (3, 48, 48))
_BATCH = {0: "batch"}

FILTERS = models(
    "kornia",
    {
        "adjust_hue": partial(_kornia, "enhance.adjust_hue", 0.3),
        "bilateral_blur": partial(_kornia, "filters.bilateral_blur", (5, 5), 0.1, (1.5, 1.5)),
        "blur_pool2d": partial(_kornia, "filters.blur_pool2d", 3),
        "build_laplacian_pyramid": partial(_kornia, "geometry.transform.build_laplacian_pyramid", 2, sizes=((1, 64, 64), (2, 64, 32), (1, 128, 64))),
        "build_pyramid": partial(_kornia, "geometry.transform.build_pyramid", 3),
        "canny": partial(_kornia, "filters.canny", make=gray),
        "center_crop": partial(_kornia, "geometry.transform.center_crop", (24, 20)),
        "distance_transform": partial(_kornia, "contrib.distance_transform", make=lambda *size: (gray(*size) > 0.7).float()),
        "equalize": partial(_kornia, "enhance.equalize", dims=_BATCH, sizes=_FIXED),
        "equalize_clahe": partial(_kornia, "enhance.equalize_clahe", grid_size=(4, 4), dims=_BATCH, sizes=_FIXED),
        "gaussian_blur2d": partial(_kornia, "filters.gaussian_blur2d", (5, 5), (1.5, 1.5)),
        "guided_blur": lambda: Model(
            *(nn.Identity(), [(pictures(*size), gray(*size)) for size in _SIZES], (HW, HW)),
            call=lambda _, x, y: import_module("kornia.filters").guided_blur(x, y, 5, 0.1),
        ),
        "harris_response": partial(_kornia, "feature.harris_response", make=gray),
        "laplacian": partial(_kornia, "filters.laplacian", 5),
        "max_blur_pool2d": partial(_kornia, "filters.max_blur_pool2d", 3),
        "median_blur": partial(_kornia, "filters.median_blur", _SQUARE),
        "motion_blur": partial(_kornia, "filters.motion_blur", 5, 35.0, 0.5),
        "nms2d": lambda: _kornia("geometry.subpix.nms2d", (5, 5), make=gray),
        "opening": lambda: _kornia("morphology.opening", torch.ones(3, 3)),
        "otsu_threshold": partial(_kornia, "filters.otsu_threshold", make=lambda *size: (gray(*size) * 255).round()),
        "posterize": partial(_kornia, "enhance.posterize", 3),
        "pyrup": partial(_kornia, "geometry.transform.pyrup"),
        "rgb_to_hsv": partial(_kornia, "color.rgb_to_hsv"),
        "rgb_to_lab": partial(_kornia, "color.rgb_to_lab"),
        "rgb_to_luv": partial(_kornia, "color.rgb_to_luv"),
        "rgb_to_yuv420": partial(_kornia, "color.rgb_to_yuv420", sizes=((1, 48, 48), (2, 64, 40), (1, 36, 52))),
        "rotate": lambda: Model(
            *(nn.Identity(), [(pictures(*size), torch.linspace(-30, 60, size[0])) for size in _SIZES], (HW, _BATCH)),
            call=lambda _, x, angle: import_module("kornia.geometry").rotate(x, angle),
        ),
        "sharpness": partial(_kornia, "enhance.sharpness", 0.7),
        "sobel": partial(_kornia, "filters.sobel"),
        "spatial_gradient": partial(_kornia, "filters.spatial_gradient", order=2),
        "unsharp_mask": partial(_kornia, "filters.unsharp_mask", _SQUARE, (1.5, 1.5)),
        "warp_perspective": lambda: Model(
            nn.Identity(),
            [(pictures(*size), torch.eye(3).repeat(size[0], 1, 1) + randn(size[0], 3, 3) / 1000) for size in _SIZES],
            (HW, _BATCH),
            call=lambda _, x, matrix: import_module("kornia.geometry").warp_perspective(x, matrix, (40, 50)),
        ),
        "zca_whiten": lambda: Model(
            *(nn.Identity(), [(randn(n, 6),) for n in (20, 33, 9)], ({0: "n"},)),
            call=lambda _, x: import_module("kornia.enhance").zca_whiten(x),
        ),
    },
)  # fmt: skip


def _network(room: str, name: str, calls: Calls, dims: Any, call: Any = None, **options: Any) -> Model:
    return Model(getattr(import_module(f"kornia.{room}"), name)(**options), calls, (dims,), call=call)


def _patches() -> Calls:
    return [(gray(n, 32, 32),) for n in (4, 9, 1)]


DETECTORS = models(
    "kornia",
    {
        "DISK": lambda: _network(
            "feature", "DISK", [(pictures(*size),) for size in ((1, 64, 64), (2, 96, 80), (1, 64, 128))], HW,
            lambda model, x: model.heatmap_and_dense_descriptors(x), desc_dim=16,
        ),
        "HyNet": lambda: _network("feature", "HyNet", _patches(), {0: "patches"}, pretrained=False),
        "KeyNet": lambda: _network("feature.keynet", "KeyNet", [(gray(*size),) for size in _SIZES], HW, pretrained=False),
        "MKDDescriptor": lambda: _network("feature", "MKDDescriptor", _patches(), {0: "patches"}, whitening=None),
        "SIFTDescriptor": lambda: _network("feature", "SIFTDescriptor", _patches(), {0: "patches"}, patch_size=32),
        "TinyViT": lambda: _network(
            "models.tiny_vit", "TinyViT", [(pictures(b, 64, 64),) for b in (1, 2, 3)], _BATCH, img_size=64, num_classes=5,
            embed_dims=[16, 16, 32, 32], depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_sizes=[4, 4, 4, 2],
        ),
    },
)  # fmt: skip
