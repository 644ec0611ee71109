"""Networks that restore, enlarge and complete pictures, with few channels and blocks."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch

from ..row import Calls, Model, models
from ..samples import HW, gray, pictures

_SIZES = ((1, 32, 32), (2, 32, 48), (1, 40, 32), (1, 53, 37))


def _pictures(channels: int, sizes: Any) -> Calls:
    def call(*size: int) -> torch.Tensor:
        image = gray(*size) if channels == 1 else pictures(*size)
        return torch.cat([image, image.mean(1, keepdim=True)], 1) if channels == 4 else image

    return [(call(*size),) for size in sizes]


def _spandrel(
    name: str, *, package: str = "spandrel", cls: str = "", channels: int = 3, sizes: Any = _SIZES, **options: Any
) -> Model:
    module = import_module(f"{package}.architectures.{name}")
    return Model(getattr(module, cls or name)(**options), _pictures(channels, sizes), (HW,))


_SWIN = {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 2), "window_size": 8, "img_size": 32}


SPANDREL = models(
    "spandrel",
    {
        "ATD": partial(
            _spandrel, "ATD", **_SWIN, category_size=16, num_tokens=8, upscale=2, upsampler="pixelshuffledirect"
        ),
        "Compact": partial(_spandrel, "Compact", num_feat=16, num_conv=4),
        "CRAFT": partial(_spandrel, "CRAFT", embed_dim=24, depths=[1, 1], num_heads=[2, 2], upscale=2),
        "DAT": partial(_spandrel, "DAT", embed_dim=24, depth=[2, 1], num_heads=[2, 2], img_size=32),
        "DITN": partial(_spandrel, "DITN", dim=24, ITL_blocks=1, SAL_blocks=1),
        "DnCNN": partial(_spandrel, "DnCNN", channels=1, nc=16, nb=5),
        "ESRGAN": partial(_spandrel, "ESRGAN", num_filters=16, num_blocks=2),
        "FDAT": partial(_spandrel, "FDAT", embed_dim=24, num_groups=1, depth_per_group=2, num_heads=2, mid_dim=16),
        "GRL": partial(
            _spandrel, "GRL", img_size=32, embed_dim=24, depths=[2], num_heads_window=[2], num_heads_stripe=[2],
            upscale=2, upsampler="pixelshuffledirect",
        ),
        "HAT": partial(_spandrel, "HAT", **_SWIN, upscale=2, squeeze_factor=4, num_feat=16),
        "KBNet_s": partial(
            _spandrel, "KBNet", cls="KBNet_s", width=16, middle_blk_num=1, enc_blk_nums=[1, 1], dec_blk_nums=[1, 1]
        ),
        "MoESR": partial(_spandrel, "MoESR", dim=16, n_blocks=1, n_block=1),
        "MoSR": partial(_spandrel, "MoSR", n_block=2, dim=16),
        "MoSR_dysample": partial(_spandrel, "MoSR", n_block=1, dim=16, upsampler="dys"),
        "NAFNet": partial(_spandrel, "NAFNet", width=8, enc_blk_nums=[1, 1], dec_blk_nums=[1, 1]),
        "OmniSR": partial(_spandrel, "OmniSR", num_feat=16),
        "PLKSR": partial(_spandrel, "PLKSR", dim=16, n_blocks=2),
        "RealPLKSR": partial(_spandrel, "PLKSR", cls="RealPLKSR", dim=16, n_blocks=2, dysample=True),
        "RCAN": partial(_spandrel, "RCAN", n_resgroups=1, n_resblocks=2, n_feats=16),
        "RealCUGAN_2x": partial(_spandrel, "RealCUGAN", cls="UpCunet2x"),
        "RealCUGAN_3x": partial(_spandrel, "RealCUGAN", cls="UpCunet3x"),
        "RestoreFormer": partial(
            _spandrel, "RestoreFormer", n_embed=32, embed_dim=32, ch=32, ch_mult=(1, 2), num_res_blocks=1, resolution=32,
            attn_resolutions=(16,), z_channels=32, sizes=((1, 32, 32), (2, 32, 48), (1, 40, 32)),
        ),
    },
)  # fmt: skip
