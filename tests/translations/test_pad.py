"""Padding."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .harness import Case, T, run

aten = torch.ops.aten
_IMAGE = T(("n", 3, "h", "w"))

CASES = (
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2, 0, 3)), (_IMAGE,), "constant", ops=("Pad",)),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2, 0, 3), value=-1.5), (_IMAGE,), "value"),
    Case("aten.pad.default", lambda x: F.pad(x, (2, 1), value=math.inf), (T(("n", "m")),), "infinity"),
    Case("aten.pad.default", lambda x: F.pad(x, (2, 1), value=math.nan), (T(("n", "m")),), "NaN"),
    Case("aten.pad.default", lambda x: 1 / F.pad(x, (2, 1), value=-0.0), (T(("n", "m")),), "-0.0"),
    Case("aten.pad.default", lambda x: F.pad(x, (-1, 2, 3, -2)), (_IMAGE,), "negative"),
    Case("aten.pad.default", lambda x: F.pad(x, (-1, -2)), (_IMAGE,), "only negative"),
    Case("aten.pad.default", lambda x: F.pad(x, (0, 0, 0, 0)) * 2, (_IMAGE,), "nothing", ops=("Mul",)),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 0, 0, 0, 2, 1)), (T(("n", 3, 4)),), "all axes"),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2)), (torch.zeros(2, 0),), "empty"),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2), value=7), (T(("n",), torch.int64, -9, 9),), "int64"),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2), value=7), (T(("n",), torch.int16, -9, 9),), "int16"),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2), value=True), (T(("n",), torch.bool),), "bool"),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2), value=True), (T(("n",), torch.bool),), "bool old", opset=12),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2)), (T(("n",), torch.float16),), "float16"),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2)), (T(("n",), torch.bfloat16),), "bfloat16"),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2)), (T(("n",), torch.float64),), "float64"),
    Case(
        "aten.pad.default", lambda x, y: F.pad(x, (0, y.shape[0] - 1, x.shape[1], 0)), (T((2, "m")), T(("n",))), "sizes"
    ),
    Case("aten.pad.default", lambda x: F.pad(x, (0, 8 - x.shape[1])), (T((2, "n")),), "to a size"),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2)), (T(("n",)),), "opset 11", opset=11),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2, 3, 4), mode="reflect"), (_IMAGE,), "reflect", ops=("Pad",)),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2), mode="reflect"), (T((3, "h")),), "reflect 1d unbatched"),
    Case("aten.pad.default", nn.ReflectionPad3d((1, 0, 2, 1, 0, 1)), (T((2, 3, 3, 4, "w")),), "reflect 3d"),
    Case("aten.pad.default", lambda x: F.pad(x, (2, -1, -2, 3), mode="reflect"), (_IMAGE,), "reflect negative"),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2, 3, 4), mode="replicate"), (_IMAGE,), "replicate"),
    Case("aten.pad.default", lambda x: F.pad(x, (9, 2), mode="replicate"), (T((3, "h")),), "replicate more than all"),
    Case("aten.pad.default", lambda x: F.pad(x, (2, -1, -2, 3), mode="replicate"), (_IMAGE,), "replicate negative"),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2), mode="replicate"), (T((3, "h")),), "replicate old", opset=11),
    Case(
        "aten.pad.default", lambda x: F.pad(x, (1, 2), mode="reflect"), (T((3, "h"), torch.bfloat16),), "reflect bf16"
    ),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 2, 3, 4), mode="circular"), (_IMAGE,), "circular", ops=("Pad",)),
    Case("aten.pad.default", lambda x: F.pad(x, (1, 0, 3, 8), mode="circular"), (_IMAGE,), "circular 18", opset=18),
    Case("aten.pad.default", lambda x: F.pad(x, (6, 6), mode="circular"), (T((2, 3, 6)),), "circular all"),
    Case("aten.pad.default", lambda x: F.pad(x, (6, 6), mode="circular"), (T((2, 3, 6)),), "circular all 18", opset=18),
    Case("aten.pad.default", lambda x: F.pad(x, (2, -1, -2, 3), mode="circular"), (_IMAGE,), "circular negative"),
    Case("aten.constant_pad_nd.default", lambda x: aten.constant_pad_nd.default(x, [1, 2], 3), (_IMAGE,)),
    Case("aten.reflection_pad1d.default", lambda x: aten.reflection_pad1d.default(x, [1, 2]), (T((3, "h")),)),
    Case("aten.reflection_pad2d.default", lambda x: aten.reflection_pad2d.default(x, [1, 2, 3, 0]), (_IMAGE,)),
    Case(
        "aten.reflection_pad3d.default",
        lambda x: aten.reflection_pad3d.default(x, [1, 2, 0, 1, 2, 1]),
        (T((2, 3, 4, 5, "w")),),
    ),
    Case("aten.replication_pad1d.default", lambda x: aten.replication_pad1d.default(x, [1, 2]), (T((3, "h")),)),
    Case("aten.replication_pad2d.default", lambda x: aten.replication_pad2d.default(x, [1, 2, 3, 0]), (_IMAGE,)),
    Case(
        "aten.replication_pad3d.default",
        lambda x: aten.replication_pad3d.default(x, [1, 2, 0, 1, 2, 1]),
        (T((2, 3, 4, 5, "w")),),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pad(case: Case) -> None:
    run(case)
