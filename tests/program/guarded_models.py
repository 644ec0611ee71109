"""Models with limits on the sizes of their inputs: branches, pooling to a part of a size, windows, chunks of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.functions import Function

__all__ = ["MODELS", "Limited"]


@dataclass(frozen=True)
class Limited:
    """A model that is exported for fewer sizes than requested.

    Attributes:
        make: Creates it.
        shape: Shape of the example.
        dims: Axis to name of its dynamic dims.
        guards: The beginnings of the names of the guards.
        others: Further shapes.
        right: How many of the shapes, the example included, the file has to accept at least.
        since: The lowest opset.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    dims: Mapping[int, str]
    guards: tuple[str, ...]
    others: tuple[tuple[int, ...], ...]
    right: int = 2
    since: int = 11


def _branch(x: Tensor) -> Tensor:
    # The value of a condition; of a branch on it, both sides would be exported.
    is_long = bool(x.shape[1] > 40)
    return x * 2 if is_long else x + 1


def _remainder(x: Tensor) -> Tensor:
    y = x.sum(1)
    is_one_more = bool(x.shape[1] % 3 == 1)
    return y if is_one_more else y * 2


def _scalar(x: Tensor) -> Any:
    is_short = bool(x.shape[1] < 8)
    if is_short:
        return x.sum(), x.shape[1], x
    return x.mean(), x.shape[1], x * 2


def _sizes_only(x: Tensor) -> Any:
    is_short = bool(x.shape[1] < 8)
    if is_short:
        return torch.zeros(x.shape[1]), torch.tensor(1.0)
    return torch.ones(x.shape[1]), torch.tensor(2.0)


def _in_subgraphs(x: Tensor) -> Tensor:
    is_short = bool(x.shape[1] < 8)
    if is_short:
        x = x * 2
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


class _PoolOfEighths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.tail = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[-2:]
        y = self.head(x)
        scale = F.avg_pool2d(y, (h // 8, w // 8), ceil_mode=True)
        return self.tail(F.interpolate(scale, size=(h, w)) + y) + x


class _Windows(nn.Module):
    """Attention in windows, with a mask made for the number of windows of the example."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)
        self.mask = nn.Buffer(torch.randn(4, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        windows = x.view(b, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
        q, k, v = self.qkv(windows).chunk(3, -1)
        scores = q @ k.transpose(1, 2)
        if h * w // 16 == self.mask.shape[0]:
            scores = (scores.view(b, -1, 16, 16) + self.mask).view(-1, 16, 16)
        y = self.out(scores.softmax(-1) @ v)
        return y.view(b, h // 4, w // 4, 4, 4, c).transpose(2, 3).reshape(b, h, w, c)


class _Samples(nn.Module):
    """A separator that is written for lengths without a remainder, and doubles and pads others."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Conv1d(1, 4, 10, 5), nn.ConvTranspose1d(4, 1, 10, 5)

    def forward(self, x: Tensor) -> Tensor:
        rest = x.shape[-1] % 40
        has_rest = bool(rest)  # as in _branch
        padded = F.pad(x * 2, (0, 40 - rest)) if has_rest else x
        return self.decoder(self.encoder(padded[:, None]).relu())[..., : x.shape[-1]]


MODELS: Mapping[str, Limited] = {
    "branch": Limited(
        lambda: Function(_branch), (2, 30), {1: "n"}, ("requires n <= 40",), ((2, 40), (2, 41), (2, 1), (2, 100))
    ),
    "remainder": Limited(
        lambda: Function(_remainder),
        (2, 4),
        {1: "n"},
        ("requires n % 3 == 1",),
        ((2, 7), (2, 1), (2, 5), (2, 6), (2, 3)),
    ),
    "outputs": Limited(lambda: Function(_scalar), (2, 5), {1: "n"}, ("requires n <= 7",), ((2, 7), (2, 8), (2, 20))),
    "sizes_only": Limited(
        lambda: Function(_sizes_only), (2, 5), {1: "n"}, ("requires n <= 7",), ((2, 7), (2, 8), (2, 20))
    ),
    "subgraphs": Limited(
        lambda: Function(_in_subgraphs), (2, 5), {1: "n"}, ("requires n <= 7",), ((2, 7), (2, 8), (2, 20))
    ),
    "pool": Limited(
        _PoolOfEighths,
        (1, 3, 16, 16),
        {0: "b", 2: "h", 3: "w"},
        (),
        ((2, 3, 16, 16), (1, 3, 18, 16), (1, 3, 17, 16), (1, 3, 16, 40), (1, 3, 32, 32), (3, 3, 9, 11)),
    ),
    "windows": Limited(
        _Windows,
        (1, 8, 8, 4),
        {0: "b", 1: "h", 2: "w"},
        (),
        ((2, 8, 8, 4), (1, 4, 16, 4), (1, 16, 16, 4), (1, 12, 8, 4), (1, 8, 9, 4), (3, 4, 4, 4)),
        3,
    ),
    "samples": Limited(_Samples, (2, 80), {0: "b", 1: "n"}, (), ((1, 120), (2, 40), (2, 81), (3, 100), (2, 200)), 4),
}
"""Name to model."""
