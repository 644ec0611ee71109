"""Descriptors of pictures, transforms, fields, and attributions."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ..row import Calls, Model, models, randn, row
from ..samples import HW, gray, pictures


def _descriptor(name: str) -> Model:
    model = getattr(import_module("kornia.feature"), name)(False)
    return Model(model, [(gray(n, 32, 32),) for n in (4, 9, 1)], ({0: "patches"},))


DESCRIPTORS = models("kornia", {name: partial(_descriptor, name) for name in ("HardNet",)})


def _lines() -> Calls:
    return [(randn(2, 16),), (randn(1, 24),), (randn(3, 9),)]


def _cosine_transform(name: str) -> Model:
    function = getattr(import_module("torch_dct"), name)
    return Model(nn.Identity(), _lines(), ({0: "batch", 1: "n"},), call=lambda _, x: function(x))


DCT = models("torch-dct", {name: partial(_cosine_transform, name) for name in ("dct1",)})


def _wavelet(name: str, calls: Calls, dims: Any, **options: Any) -> Model:
    function = getattr(import_module("ptwt"), name)
    return Model(nn.Identity(), calls, (dims,), call=lambda _, x: function(x, "db2", **options))


WAVELETS = models(
    "ptwt",
    {
        "wavedec": lambda: _wavelet(
            "wavedec", [(randn(b, n),) for b, n in ((2, 32), (1, 64), (3, 41))], {0: "batch", 1: "n"}, level=2
        ),
    },
)


def _attribution(method: str) -> Model:
    library = import_module("captum.attr")
    network = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.Tanh()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    )

    def attribute(network: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            if method == "LayerGradCam":
                found: torch.Tensor = library.LayerGradCam(network, network[3]).attribute(x, target=1)  # type: ignore[index]
            else:
                found = getattr(library, method)(network).attribute(x, target=1)
        return found

    calls = [(pictures(*size),) for size in ((1, 16, 16), (2, 20, 24), (3, 16, 18))]
    return Model(network, calls, (HW,), call=attribute)


CAPTUM = models(
    "captum",
    {name: partial(_attribution, name) for name in ("IntegratedGradients", "LayerGradCam", "InputXGradient")},
)


@row("alienx-labs", real=True)
def darcy_flow() -> Model:
    import alienx_labs

    def field(size: int, angle: float) -> tuple[torch.Tensor, ...]:
        sample = alienx_labs.data2d.generate_darcy_sample_gpu(size, "cpu", angle_deg=angle)
        places, permeability, magnitude, gradient, _ = sample
        parts = [part[None].float() for part in (places, permeability, gradient, magnitude)]
        return *parts, alienx_labs.model2d.get_cached_iso_knn(size, "cpu")

    calls = [field(24, 37.0), field(32, 10.0), field(17, 80.0)]
    neighbors = {0: "n"} if calls[0][4].ndim == 2 else {1: "n"}
    return Model(alienx_labs.load_darcy2d(), calls, (*({1: "n"},) * 4, neighbors))
