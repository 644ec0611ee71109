"""Pixel shuffle, pixel unshuffle and channel shuffle."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from .harness import Case, T, run

_IMAGE = T(("n", 12, "h", "w"))


def _unshuffle(x: torch.Tensor) -> torch.Tensor:
    # Twice the dynamic size is even at every size.
    return F.pixel_unshuffle(torch.cat([torch.cat([x, x], -1)] * 2, -2), 2)


CASES = (
    Case("aten.pixel_shuffle.default", lambda x: F.pixel_shuffle(x, 2), (_IMAGE,), ops=("DepthToSpace",)),
    Case("aten.pixel_shuffle.default", lambda x: F.pixel_shuffle(x, 1) * 2, (_IMAGE,), "by 1", ops=("Mul",)),
    Case("aten.pixel_shuffle.default", lambda x: F.pixel_shuffle(x, 2), (T((12, "h", "w")),), "unbatched"),
    Case("aten.pixel_shuffle.default", lambda x: F.pixel_shuffle(x, 2), (T(("n", 2, 12, "h", "w")),), "two batch axes"),
    Case("aten.pixel_shuffle.default", lambda x: F.pixel_shuffle(x, 2), (T((2, 12, "h", 3), torch.int64),), "int64"),
    Case("aten.pixel_shuffle.default", lambda x: F.pixel_shuffle(x, 2), (T((2, 12, 3, 3), torch.float64),), "float64"),
    Case("aten.pixel_shuffle.default", lambda x: F.pixel_shuffle(x, 2), (_IMAGE,), "opset 11", opset=11),
    Case(
        "aten.pixel_unshuffle.default",
        lambda x: F.pixel_unshuffle(x, 3),
        (T(("n", 2, 6, 9)),),
        ops=("SpaceToDepth", "Gather"),
    ),
    Case(
        "aten.pixel_unshuffle.default",
        lambda x: F.pixel_unshuffle(x, 2),
        (T(("n", 1, 6, 8)),),
        "one channel",
        ops=("SpaceToDepth",),
    ),
    Case("aten.pixel_unshuffle.default", _unshuffle, (T(("n", 3, "h", "w")),), "dynamic"),
    Case("aten.pixel_unshuffle.default", _unshuffle, (T((3, "h", "w")),), "unbatched"),
    Case("aten.pixel_unshuffle.default", _unshuffle, (T((2, 3, "h", "w"), torch.int64),), "int64"),
    Case("aten.pixel_unshuffle.default", lambda x: F.pixel_unshuffle(x, 1) * 2, (_IMAGE,), "by 1", ops=("Mul",)),
    Case("aten.pixel_unshuffle.default", lambda x: F.pixel_unshuffle(x, 2), (T((2, 3, 4, 4)),), "opset 11", opset=11),
    Case("aten.channel_shuffle.default", lambda x: torch.channel_shuffle(x, 3), (_IMAGE,), ops=("Gather",)),
    Case(
        "aten.channel_shuffle.default", lambda x: torch.channel_shuffle(x, 4), (T(("n", 12, "t"), torch.int64),), "1d"
    ),
    Case("aten.channel_shuffle.default", lambda x: torch.channel_shuffle(x, 1) * 2, (_IMAGE,), "by 1", ops=("Mul",)),
    Case(
        "aten.channel_shuffle.default",
        lambda x: torch.channel_shuffle(torch.cat([x, x], 1), 2),
        (T(("n", "m", 3, "w")),),
        "symbolic channels",
    ),
    Case("aten.native_channel_shuffle.default", lambda x: torch.native_channel_shuffle(x, 3), (T((2, 12, 3, 4)),)),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pixel(case: Case) -> None:
    run(case)
