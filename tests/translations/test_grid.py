"""Grid sampling and affine grids."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from .harness import Case, T, run

_VOLUME, _GRID = T(("n", 2, 3, 4, 5)), T(("n", 2, 2, 3, 3), low=-1.3, high=1.3)

CASES = (
    *(
        Case(
            "aten.grid_sampler.default",
            lambda x, g, mode=mode, padding=padding, corners=corners: F.grid_sample(x, g, mode, padding, corners),
            (_VOLUME, _GRID),
            f"{mode}, {padding}, {corners}, opset {opset}",
            opset=opset,
        )
        for opset in (13, 20)
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border", "reflection")
        for corners in (False, True)
    ),
    *(
        Case(
            "aten.affine_grid_generator.default",
            lambda x, theta, corners=corners: F.affine_grid(theta, list(x.shape), align_corners=corners),
            (T(("n", 1, "h", "w")), T(("n", 2, 3), dtype)),
            f"{dtype}, {corners}",
            opset=opset,
        )
        for corners, dtype, opset in ((True, torch.float32, 11), (False, torch.float64, 20))
    ),
    Case(
        "aten.grid_sampler_3d.default",
        lambda x, g: torch.ops.aten.grid_sampler_3d(x, g, 0, 0, False),
        (_VOLUME, _GRID),
    ),
    Case(
        "aten.grid_sampler_3d.default",
        lambda x, g: torch.ops.aten.grid_sampler_3d(x, g, 0, 2, True),
        (T((2, 3, 1, 4, 5), torch.float64), T((2, 2, 2, 3, 3), torch.float64, low=-1.3, high=1.3)),
        "double, one layer",
        opset=11,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_translation(case: Case) -> None:
    run(case)
