"""Networks that restore, enlarge and complete pictures, with few channels and blocks."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch

from ..row import Calls, Model, models
from ..samples import HW, gray, pictures

_SIZES = ((1, 32, 32), (2, 32, 48), (1, 40, 32), (1, 53, 37))
_MULTIPLES = ((1, 32, 32), (2, 32, 64), (1, 64, 96))
_LARGE = ((1, 64, 64), (2, 64, 96), (1, 80, 64), (1, 117, 101))


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
_FORMER = {"dim": 16, "num_blocks": [1, 1, 1, 1], "num_refinement_blocks": 1, "heads": [1, 1, 2, 2]}
_UFORMER = {"img_size": 64, "embed_dim": 8, "depths": (1,) * 9, "num_heads": (1, 1, 2, 2, 2, 2, 2, 1, 1)}


def _lama() -> Model:
    """Small in its blocks only: the class has no sizes."""
    calls = [(image, image.mean(1, keepdim=True).round()) for (image,) in _pictures(3, _MULTIPLES)]
    return Model(import_module("spandrel.architectures.LaMa").LaMa(in_nc=4, out_nc=3), calls, (HW, HW))


SPANDREL = models(
    "spandrel",
    {
        "ATD": partial(
            _spandrel, "ATD", **_SWIN, category_size=16, num_tokens=8, upscale=2, upsampler="pixelshuffledirect"
        ),
        "Compact": partial(_spandrel, "Compact", num_feat=16, num_conv=4),
        "CRAFT": partial(_spandrel, "CRAFT", embed_dim=24, depths=[1, 1], num_heads=[2, 2], upscale=2),
        "DAT": partial(_spandrel, "DAT", embed_dim=24, depth=[2, 1], num_heads=[2, 2], img_size=32),
        "DCTLSA": partial(_spandrel, "DCTLSA", nf=20, num_modules=6),
        "DITN": partial(_spandrel, "DITN", dim=24, ITL_blocks=1, SAL_blocks=1),
        "DnCNN": partial(_spandrel, "DnCNN", channels=1, nc=16, nb=5),
        "DRCT": partial(_spandrel, "DRCT", **{**_SWIN, "window_size": 4}, gc=8, upscale=2, upsampler="pixelshuffle"),
        "DRUNet": partial(_spandrel, "DRUNet", in_nc=4, out_nc=3, channels=4, nc=[8, 16, 24, 32], nb=1),
        "ESRGAN": partial(_spandrel, "ESRGAN", num_filters=16, num_blocks=2),
        "ESRGAN_unshuffled": partial(_spandrel, "ESRGAN", in_nc=12, num_filters=16, num_blocks=2, shuffle_factor=2, scale=4),
        "FBCNN": partial(_spandrel, "FBCNN", nc=[8, 16, 24, 512], nb=1),
        "FDAT": partial(_spandrel, "FDAT", embed_dim=24, num_groups=1, depth_per_group=2, num_heads=2, mid_dim=16),
        "FFTformer": partial(_spandrel, "FFTformer", dim=16, num_blocks=[1, 1, 1], num_refinement_blocks=1, sizes=_MULTIPLES),
        "GFPGAN": partial(
            _spandrel, "GFPGAN", out_size=32, num_style_feat=32, channel_multiplier=1, num_mlp=2, narrow=0.125, sizes=((1, 32, 32), (2, 32, 32), (3, 32, 32))
        ),
        "GRL": partial(
            _spandrel, "GRL", img_size=32, embed_dim=24, depths=[2], num_heads_window=[2], num_heads_stripe=[2],
            upscale=2, upsampler="pixelshuffledirect",
        ),
        "HAT": partial(_spandrel, "HAT", **_SWIN, upscale=2, squeeze_factor=4, num_feat=16),
        "HVICIDNet": partial(_spandrel, "HVICIDNet", channels=[12, 12, 24, 48], heads=[1, 2, 4, 8], sizes=_MULTIPLES),
        "IPT": partial(
            _spandrel, "IPT", patch_size=48, n_feats=16, num_heads=2, num_layers=1, scale=[2],
            sizes=((1, 48, 48), (2, 48, 48), (3, 48, 48)),
        ),
        "KBNet_l": partial(_spandrel, "KBNet", cls="KBNet_l", **{**_FORMER, "dim": 48}),
        "KBNet_s": partial(
            _spandrel, "KBNet", cls="KBNet_s", width=16, middle_blk_num=1, enc_blk_nums=[1, 1], dec_blk_nums=[1, 1]
        ),
        "LaMa": lambda: _lama(),
        "MMRealSR": partial(
            _spandrel, "MMRealSR", num_in_ch=3, num_out_ch=3, num_feat=16, num_block=1, num_grow_ch=8, num_feats=[8, 8, 8, 8], num_blocks=[1] * 4
        ),
        "MixDehazeNet": partial(_spandrel, "MixDehazeNet", embed_dims=[8, 16, 32, 16, 8], sizes=((1, 64, 64), (2, 64, 96), (1, 80, 64))),
        "MoESR": partial(_spandrel, "MoESR", dim=16, n_blocks=1, n_block=1),
        "MoSR": partial(_spandrel, "MoSR", n_block=2, dim=16),
        "MoSR_dysample": partial(_spandrel, "MoSR", n_block=1, dim=16, upsampler="dys"),
        "NAFNet": partial(_spandrel, "NAFNet", width=8, enc_blk_nums=[1, 1], dec_blk_nums=[1, 1]),
        "OmniSR": partial(_spandrel, "OmniSR", num_feat=16),
        "PLKSR": partial(_spandrel, "PLKSR", dim=16, n_blocks=2),
        "RealPLKSR": partial(_spandrel, "PLKSR", cls="RealPLKSR", dim=16, n_blocks=2, dysample=True),
        "RCAN": partial(_spandrel, "RCAN", n_resgroups=1, n_resblocks=2, n_feats=16),
        "RGT": partial(_spandrel, "RGT", embed_dim=24, depth=[2, 1], num_heads=[2, 2], img_size=32),
        "RealCUGAN_2x": partial(_spandrel, "RealCUGAN", cls="UpCunet2x"),
        "RealCUGAN_3x": partial(_spandrel, "RealCUGAN", cls="UpCunet3x"),
        "RealCUGAN_2x_fast": partial(_spandrel, "RealCUGAN", cls="UpCunet2x_fast", sizes=_LARGE),
        "RestoreFormer": partial(
            _spandrel, "RestoreFormer", n_embed=32, embed_dim=32, ch=32, ch_mult=(1, 2), num_res_blocks=1, resolution=32,
            attn_resolutions=(16,), z_channels=32, sizes=((1, 32, 32), (2, 32, 48), (1, 40, 32)),
        ),
        "RetinexFormer": partial(_spandrel, "RetinexFormer", n_feat=8, stage=1),
        "SAFMN": partial(_spandrel, "SAFMN", dim=16, n_blocks=2),
        "SAFMNBCIE": partial(_spandrel, "SAFMNBCIE", dim=16, n_blocks=2, num_layers=2),
        "SCUNet": partial(_spandrel, "SCUNet", config=[1] * 7, dim=16, input_resolution=64, sizes=_LARGE),
        "SPAN": partial(_spandrel, "SPAN", 3, 3, feature_channels=16),
        "SeemoRe": partial(_spandrel, "SeemoRe", num_experts=3, num_layers=1, embedding_dim=16),
        "SwiftSRGAN": partial(_spandrel, "SwiftSRGAN", num_channels=16, num_blocks=2),
        "Swin2SR": partial(_spandrel, "Swin2SR", **_SWIN, upsampler="pixelshuffle"),
        "SwinIR": partial(_spandrel, "SwinIR", **_SWIN, upscale=2, upsampler="pixelshuffle"),
        "Uformer": partial(_spandrel, "Uformer", **_UFORMER, sizes=((1, 128, 128), (2, 128, 128), (1, 256, 256))),
    },
)  # fmt: skip


_extra = partial(_spandrel, package="spandrel_extra_arches")

EXTRA = models(
    "spandrel-extra-arches",
    {
        "AdaCode": partial(_extra, "AdaCode", codebook_params=[[32, 32, 32]], gt_resolution=64, LQ_stage=False),
        "FeMaSR": partial(_extra, "FeMaSR", codebook_params=[[32, 32, 32]], gt_resolution=64, LQ_stage=False),
        "M3SNet": partial(_extra, "M3SNet", width=8, enc_blk_nums=[1, 1, 1, 1]),
        "MIRNet2": partial(_extra, "MIRNet2", n_feat=16, n_MRB=1),
        "MPRNet": partial(
            _extra, "MPRNet", n_feat=8, scale_unetfeats=4, scale_orsnetfeats=4, num_cab=1, sizes=((1, 32, 32), (2, 32, 64), (1, 64, 48))
        ),
        "Restormer": partial(_extra, "Restormer", **_FORMER, sizes=((1, 32, 32), (2, 32, 48), (1, 40, 32))),
        "SRFormer": partial(_extra, "SRFormer", **_SWIN, upscale=2, upsampler="pixelshuffle"),
        "DDColor": partial(
            _extra, "DDColor", encoder_name="convnext-t", input_size=(64, 64), nf=32, num_queries=8, dec_layers=3,
            num_output_channels=2, sizes=((1, 64, 64), (2, 64, 64), (3, 64, 64)),
        ),
    },
)  # fmt: skip
