"""Networks of medical imaging, in two dimensions where they have the choice, and of volumes."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch

from ..row import Model, models, randint, randn
from ..samples import HW, gray

_PLANES = ((1, 32, 32), (2, 64, 48), (1, 48, 32))
_BATCH = {0: "batch"}
_FLAT = {"spatial_dims": 2, "in_channels": 1}
_LAYERS = {"channels": (8, 16, 32), "strides": (2, 2)}


def _make(name: str, **options: Any) -> Any:
    room = "monai.networks.nets" + (".restormer" if name == "Restormer" else "")
    return getattr(import_module(room), name)(**options)


def _plane(name: str, *, sizes: Any = _PLANES, **options: Any) -> Model:
    return Model(_make(name, **{**_FLAT, **options}), [(gray(*size),) for size in sizes], (HW,))


def _fixed(name: str, **options: Any) -> Model:
    return Model(_make(name, **{**_FLAT, **options}), [(gray(b, 32, 32),) for b in (2, 1, 3)], (_BATCH,))


def _diffusion() -> Model:
    model = _make(
        "DiffusionModelUNet",
        **{**_FLAT, "out_channels": 1, "num_res_blocks": 1, "channels": (8, 16), "attention_levels": (False, True)},
        **{"num_head_channels": 8, "norm_num_groups": 4, "with_conditioning": True, "cross_attention_dim": 8},
    )
    calls = [
        (gray(*size), randint(1000, size[0]), randn(size[0], 3, 8)) for size in ((1, 16, 16), (2, 32, 24), (1, 24, 16))
    ]
    return Model(model, calls, (HW, _BATCH, _BATCH))


def _bags() -> Model:
    from torch import nn

    backbone = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 16))
    model = _make(
        "MILModel", num_classes=3, mil_mode="att_trans", backbone=backbone, backbone_num_features=16, trans_blocks=1
    )
    calls = [(torch.stack([gray(n, 24, 24)] * b),) for b, n in ((1, 4), (2, 7), (3, 2))]
    return Model(model, calls, ({0: "batch", 1: "pictures"},))


MONAI = models(
    "monai",
    {
        "AttentionUnet": partial(_plane, "AttentionUnet", out_channels=2, **_LAYERS),
        "BasicUNet": partial(
            _plane, "BasicUNet", features=(8, 8, 8, 8, 8, 8), sizes=((1, 32, 32), (2, 64, 48), (1, 37, 51)),
        ),
        "BasicUNetPlusPlus": partial(_plane, "BasicUNetPlusPlus", features=(4, 4, 8, 8, 8, 4)),
        "DenseNet": partial(
            _plane, "DenseNet", out_channels=3, init_features=8, growth_rate=4, block_config=(1, 2), sizes=((1, 32, 32), (2, 64, 48), (1, 37, 51)),
        ),
        "DiffusionModelUNet": _diffusion,
        "DynUNet": partial(
            _plane, "DynUNet", out_channels=2, kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2], filters=[8, 16, 16],
        ),
        "EfficientNetBN": partial(
            _plane, "EfficientNetBN", model_name="efficientnet-b0", pretrained=False, num_classes=3, sizes=((1, 64, 64), (2, 64, 96), (1, 80, 64))
        ),
        "FlexibleUNet": partial(
            _plane, "FlexibleUNet", out_channels=2, backbone="resnet10", decoder_channels=(16, 16, 8, 8, 8), sizes=((1, 64, 64), (2, 64, 96), (1, 96, 128)),
        ),
        "HighResNet": partial(_plane, "HighResNet", out_channels=2, sizes=((1, 32, 32), (2, 64, 48), (1, 37, 51))),
        "LocalNet": partial(
            _plane, "LocalNet", num_channel_initial=4, extract_levels=(0, 1, 2), out_channels=2
        ),
        "MedNeXt": partial(
            _plane, "MedNeXt", init_filters=8, kernel_size=3, blocks_down=(1, 1), blocks_bottleneck=1, blocks_up=(1, 1)
        ),
        "MILModel": _bags,
        "Quicknat": partial(
            lambda **options: Model(_make("Quicknat", **options), [(gray(*size),) for size in _PLANES], (HW,)),
            num_classes=3, num_filters=8,
        ),
        "RegUNet": partial(_plane, "RegUNet", num_channel_initial=4, depth=2, out_channels=2),
        "ResNet": lambda: Model(
            _make("ResNet", block="basic", layers=[1, 1, 1, 1], block_inplanes=[8, 8, 16, 16], n_input_channels=1, num_classes=3),
            [(randn(b, 1, d, h, w),) for b, d, h, w in ((1, 16, 16, 16), (2, 32, 16, 24), (1, 21, 33, 17))],
            ({0: "batch", 2: "d", 3: "h", 4: "w"},),
        ),
        "SegResNet": partial(_plane, "SegResNet", blocks_down=(1, 1, 1), blocks_up=(1, 1)),
        "SegResNetDS": partial(_plane, "SegResNetDS", init_filters=8, blocks_down=(1, 1, 1)),
        "SENet": partial(
            _plane, "SENet", block="se_bottleneck", layers=(1, 1, 1, 1), groups=1, reduction=8, inplanes=8, num_classes=3,
            sizes=((1, 64, 64), (2, 64, 96), (1, 80, 64)),
        ),
        "SwinUNETR": partial(
            _plane, "SwinUNETR", out_channels=2, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2), window_size=4, feature_size=12,
            sizes=((1, 64, 64), (2, 64, 96), (1, 96, 64)),
        ),
        "UNet": partial(_plane, "UNet", out_channels=2, num_res_units=1, **_LAYERS),
        "UNETR": partial(_fixed, "UNETR", out_channels=2, img_size=(32, 32), feature_size=8, hidden_size=32, mlp_dim=32, num_heads=2),
        "ViT": partial(
            _fixed, "ViT", img_size=(32, 32), patch_size=(8, 8), hidden_size=32, mlp_dim=32, num_layers=2, num_heads=2, classification=True
        ),
        "VQVAE": partial(
            _plane, "VQVAE", out_channels=1, channels=(8, 16), num_res_layers=1, num_res_channels=(8, 16), num_embeddings=16, embedding_dim=8,
            downsample_parameters=((2, 4, 1, 1), (2, 4, 1, 1)), upsample_parameters=((2, 4, 1, 1, 0), (2, 4, 1, 1, 0)),
        ),
    },
)  # fmt: skip
