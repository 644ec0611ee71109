"""The smallest network of each newer architecture of timm, and decoders and encoders of segmentation."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..row import Calls, Model, models
from ..samples import HW, pictures

_OF_ANY_SIZE = (
    *(
        "convnextv2_atto",
        "cpubone_nano",
        "cspnext_tiny",
        "cs3darknet_s",
        "dla46_c",
        "edgenext_xx_small",
        "efficientvit_b0",
        "efficientvim_m1",
    ),
    *(
        "ese_vovnet19b_slim_dw",
        "fasternet_t0",
        "fastvit_t8",
        "fbnetc_100",
        "gernet_s",
        "ghostnetv3_050",
        "hrnet_w18_small",
        "iformer_t",
    ),
    *(
        "lcnetv2_small",
        "lowformer_b0",
        "mambaout_femto",
        "mixnet_s",
        "mnasnet_small",
        "mobilenetv3_small_050",
        "mobilevit_xxs",
    ),
    *(
        "mobilevitv2_050",
        "poolformerv2_s12",
        "pvt_v2_b0",
        "regnety_002",
        "repghostnet_050",
        "repvgg_a0",
        "repvit_m0_9",
        "resnet10t",
    ),
    *("rexnet_100", "shvit_s1", "starnet_s050", "swiftformer_xs", "test_nfnet", "tf_efficientnetv2_b0", "tinynet_e"),
)
"""Networks of pictures of any size."""

_OF_ONE_SIZE = {
    "crossvit_tiny_240": 240,
    "csatv2": 128,
    "deit_tiny_patch16_224": 96,
    "efficientformerv2_s0": 96,
    "efficientvit_m0": 96,
    "eva02_tiny_patch14_224": 70,
    "gcvit_xxtiny": 224,
    "levit_128s": 96,
    "mixer_s32_224": 96,
    "pit_ti_224": 96,
    "resmlp_12_224": 96,
    "test_vit": 96,
    "tiny_vit_5m_224": 96,
    "visformer_tiny": 96,
    "xcit_nano_12_p16_224": 96,
}
"""Networks with a size of their own, which are made for that of a picture."""

_KEEP_THEIR_SIZE = ("crossvit_tiny_240", "gcvit_xxtiny", "csatv2")


def _timm(name: str, size: int = 0) -> Model:
    import timm

    options: dict[str, Any] = {} if not size or name in _KEEP_THEIR_SIZE else {"img_size": size}
    model = timm.create_model(name, pretrained=False, num_classes=10, **options)
    if size:
        return Model(model, [(pictures(batch, size, size),) for batch in (1, 2, 3)], ({0: "batch"},))
    return Model(model, [(pictures(*sizes),) for sizes in ((1, 96, 96), (2, 128, 96), (1, 160, 192))], (HW,))


TIMM = models(
    "timm",
    {
        **{name: partial(_timm, name) for name in _OF_ANY_SIZE},
        **{name: partial(_timm, name, size) for name, size in _OF_ONE_SIZE.items()},
    },
)


def _segmentation(decoder: str, encoder: str = "resnet18", calls: Calls | None = None, **options: Any) -> Model:
    import segmentation_models_pytorch

    make = getattr(segmentation_models_pytorch, decoder)
    sizes = ((1, 64, 64), (2, 96, 64), (1, 160, 128))
    model = make(encoder_name=encoder, encoder_weights=None, classes=3, **options)
    return Model(model, calls or [(pictures(*size),) for size in sizes], (HW,))


SEGMENTATION = models(
    "segmentation-models-pytorch",
    {
        "PAN": lambda: _segmentation(
            "PAN", calls=[(pictures(*size),) for size in ((1, 128, 128), (2, 160, 128), (1, 128, 192))]
        ),
        "PSPNet": partial(_segmentation, "PSPNet"),
        "Segformer": partial(_segmentation, "Segformer"),
        "Segformer_mit_b0": partial(_segmentation, "Segformer", "mit_b0"),
        "Unet": partial(_segmentation, "Unet", decoder_attention_type="scse"),
        "Unet_densenet121": partial(_segmentation, "Unet", "densenet121"),
        "Unet_dpn68": partial(_segmentation, "Unet", "dpn68"),
        "Unet_efficientnet_b0": partial(_segmentation, "Unet", "efficientnet-b0"),
        "Unet_mobilenet_v2": partial(_segmentation, "Unet", "mobilenet_v2"),
        "Unet_mobileone_s0": partial(_segmentation, "Unet", "mobileone_s0"),
        "Unet_regnety_002": partial(_segmentation, "Unet", "timm-regnety_002"),
        "Unet_vgg11": partial(_segmentation, "Unet", "vgg11"),
        "UnetPlusPlus": partial(_segmentation, "UnetPlusPlus", decoder_channels=(64, 32, 16, 16, 8)),
        "UPerNet": partial(_segmentation, "UPerNet", decoder_channels=32),
    },
)
