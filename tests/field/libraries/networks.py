"""Networks of segmentation and classification."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from ..row import Calls, Model, models, row
from ..samples import HW, pictures


def _segmentation(architecture: str) -> Model:
    import segmentation_models_pytorch

    make = getattr(segmentation_models_pytorch, architecture)
    calls = [(pictures(1, 64, 64),), (pictures(2, 96, 64),), (pictures(1, 160, 128),)]
    return Model(make(encoder_name="resnet18", encoder_weights=None, classes=3), calls, (HW,))


SEGMENTATION = models(
    "segmentation-models-pytorch",
    {name: partial(_segmentation, name) for name in ("MAnet", "Linknet", "FPN", "DeepLabV3", "DeepLabV3Plus")},
)


@row("segmentation-models-pytorch")
def DPT() -> Model:
    import segmentation_models_pytorch

    model = segmentation_models_pytorch.DPT(
        encoder_name="tu-vit_tiny_patch16_224.augreg_in21k", encoder_weights=None, dynamic_img_size=True, classes=3
    )
    return Model(model, [(pictures(1, 224, 224),), (pictures(2, 224, 224),), (pictures(1, 224, 256),)], (HW,))


_TIMM = ("convnext_atto", "mobilenetv4_conv_small", "mobileone_s0", "lcnet_050", "hgnetv2_b0", "inception_next_atto")


def _timm(name: str) -> Model:
    import timm

    calls = [(pictures(batch, 96, 96),) for batch in (1, 2, 3)]
    return Model(timm.create_model(name, pretrained=False), calls, ({0: "batch"},))


TIMM = models("timm", {name: partial(_timm, name) for name in _TIMM})


def _nnunet(name: str, convolution: type[nn.Module], norm: type[nn.Module], calls: Calls, dims: Any) -> Model:
    from dynamic_network_architectures.architectures import unet

    blocks: Any = (1, 1, 1) if name == "ResidualEncoderUNet" else 1
    model = getattr(unet, name)(
        *(1, 3, (8, 16, 32), convolution, 3, (1, 2, 2), blocks, 2, (1, 1)),
        **{"conv_bias": True, "norm_op": norm, "norm_op_kwargs": {"affine": True}, "nonlin": nn.LeakyReLU},
    )
    return Model(model, calls, dims)


@row("dynamic-network-architectures")
def plain_3d_unet() -> Model:
    calls = [(torch.rand(1, 1, 16, 16, 16),), (torch.rand(2, 1, 8, 24, 20),), (torch.rand(1, 1, 12, 16, 32),)]
    dims = ({0: "batch", 2: "d", 3: "h", 4: "w"},)
    return _nnunet("PlainConvUNet", nn.Conv3d, nn.InstanceNorm3d, calls, dims)


@row("dynamic-network-architectures")
def residual_encoder_2d_unet() -> Model:
    calls = [(pictures(1, 32, 32)[:, :1],), (pictures(2, 64, 48)[:, :1],), (pictures(1, 36, 48)[:, :1],)]
    return _nnunet("ResidualEncoderUNet", nn.Conv2d, nn.InstanceNorm2d, calls, (HW,))
