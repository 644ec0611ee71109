"""Real inputs: pictures that scikit-image ships, and a sung vowel."""

from __future__ import annotations

import math
from importlib import import_module

import torch
from torch.nn.functional import interpolate

__all__ = ["HW", "gray", "picture", "pictures", "voice"]

HW = {0: "batch", 2: "h", 3: "w"}
"""The dims of a batch of pictures."""


def picture(name: str, height: int, width: int) -> torch.Tensor:
    """One of ``skimage.data`` as (1, 3, height, width), from 0 to 1."""
    image = torch.from_numpy(getattr(import_module("skimage.data"), name)()).float() / 255
    image = image[..., None].expand(*image.shape, 3) if image.ndim == 2 else image[..., :3]
    image = image.permute(2, 0, 1)[None]
    return interpolate(image, size=(height, width), mode="bilinear", antialias=True).contiguous()


def pictures(batch: int, height: int, width: int) -> torch.Tensor:
    """A batch of different pictures, (batch, 3, height, width)."""
    names = ("astronaut", "coffee", "chelsea", "rocket")
    return torch.cat([picture(names[number % len(names)], height, width) for number in range(batch)])


def gray(batch: int, height: int, width: int) -> torch.Tensor:
    """A batch of gray pictures, (batch, 1, height, width)."""
    return pictures(batch, height, width).mean(1, keepdim=True)


def voice(batch: int, samples: int, rate: int = 16000) -> torch.Tensor:
    """A vowel that rises from 110 Hz by an octave a second, and others of a batch higher, (batch, samples)."""
    time = torch.arange(samples) / rate
    start = 110.0 * (1 + torch.arange(batch)[:, None] / 4)
    phase = 2 * math.pi * start * (2**time - 1) / math.log(2)
    partials = [torch.sin(number * phase) / number**1.5 for number in range(1, 9)]
    return 0.2 * torch.stack(partials).sum(0) * (1 + 0.5 * torch.sin(2 * math.pi * 3 * time))
