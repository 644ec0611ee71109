"""Grid sampling and affine grids."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import fxonnx

from ..functions import VariadicFunction
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
            "aten.grid_sampler.default",
            lambda x, g, mode=mode: F.grid_sample(x, g, mode, "border", False),
            (T(("n", 2, "h", 5)), T(("n", "m", 3, 2), low=-1.3, high=1.3)),
            f"image, {mode}, opset {opset}",
            opset=opset,
        )
        for opset in (13, 16, 20)
        for mode in ("bilinear", "nearest", "bicubic")
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
    *(
        Case(
            "aten.grid_sampler_2d.default",
            lambda x, g, mode=mode: torch.ops.aten.grid_sampler_2d(x, g, mode, 2, False),
            (T(("n", 2, 4, 5)), T(("n", 3, 3, 2), low=-1.3, high=1.3)),
            f"mode {mode}, opset {opset}",
            opset=opset,
        )
        for opset in (13, 20)
        for mode in (0, 1, 2)
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


_MODES, _PADDING = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


def _on_and_between_elements(*sizes: int) -> torch.Tensor:
    """A grid of all positions on elements, halfway between them and at the borders, for both values of align_corners.

    It reaches one size beyond the input at each end.
    """
    axes = []
    for size in reversed(sizes):
        halves = torch.arange(-2 * size, 4 * size, dtype=torch.float64) / 2
        aligned, centered = 2 * halves / max(size - 1, 1) - 1, (2 * halves + 1) / size - 1
        axes.append(torch.cat([aligned, centered, torch.tensor([-101.0, -1.0, 0.0, 1.0, 101.0], dtype=torch.float64)]))
    count = max(map(len, axes))
    # The axes' positions are combined diagonally, at all offsets that are multiples of seven.
    rows = [
        torch.stack([axis[(torch.arange(count) + 7 * k * n) % len(axis)] for n, axis in enumerate(axes)], -1)
        for k in range(6)
    ]
    return torch.stack(rows)


def _sampled(mode: str, padding: str, corners: bool, rank: int, *, dtype: torch.dtype, opset: int) -> list[str]:
    """Compares the program with eager torch, and returns its operators. Half types are computed in float32."""
    # The positions halfway between elements of these sizes are exact, so that rounding them has one result.
    sizes = ((5, 3, 2) if corners else (4, 8, 2))[:rank]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, *sizes, generator=generator, dtype=torch.float64).to(dtype)
    grid = _on_and_between_elements(*sizes).to(dtype)
    grid = grid.reshape(1, *[1] * (len(sizes) - 2), *grid.shape).expand(2, *[-1] * (len(sizes) + 1)).contiguous()
    model = VariadicFunction(lambda x, g: F.grid_sample(x, g, mode, padding, corners)).eval()
    program = fxonnx.export(model, (x, grid), opset_version=opset)
    exact = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    tolerance = {"rtol": 4e-5, "atol": 4e-5} if exact == dtype else {}
    expected = model(x.to(exact), grid.to(exact)).to(dtype)
    torch.testing.assert_close(program(x, grid)[0], expected, **tolerance)
    return [node.op_type for node in program.model.graph.all_nodes()]


@pytest.mark.parametrize("opset", [16, 20, 23])
@pytest.mark.parametrize(("mode", "padding", "corners"), list(itertools.product(_MODES, _PADDING, (False, True))))
def test_images(mode: str, padding: str, corners: bool, opset: int) -> None:
    operators = _sampled(mode, padding, corners, 2, dtype=torch.float32, opset=opset)
    # ONNX Runtime's limit: it rounds to the nearest element before it reflects.
    is_limit = (mode, padding, corners) == ("nearest", "reflection", False)
    assert ("GridSample" not in operators) if is_limit else (operators == ["GridSample"])


@pytest.mark.parametrize(
    ("dtype", "opset", "operators"),
    [
        (torch.float16, 16, ["GridSample"]),
        (torch.float16, 20, ["GridSample"]),
        (torch.bfloat16, 20, ["Cast", "Cast", "GridSample", "Cast"]),
        (torch.float64, 20, ["GridSample"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", _MODES)
def test_types_of_images(mode: str, dtype: torch.dtype, opset: int, operators: list[str]) -> None:
    for corners in (True, False):
        assert _sampled(mode, "border", corners, 2, dtype=dtype, opset=opset) == operators


@pytest.mark.parametrize(
    ("dtype", "opset"), [(torch.float32, 11), (torch.float32, 15), (torch.float64, 15), (torch.float64, 19)], ids=str
)
@pytest.mark.parametrize("mode", _MODES)
def test_images_without_grid_sample(mode: str, dtype: torch.dtype, opset: int) -> None:
    """GridSample exists from opset 16 on, ONNX Runtime's kernel for float64 from 20 on."""
    assert "GridSample" not in _sampled(mode, "reflection", True, 2, dtype=dtype, opset=opset)


@pytest.mark.parametrize(("mode", "padding", "corners"), list(itertools.product(_MODES[:2], _PADDING, (False, True))))
def test_volumes(mode: str, padding: str, corners: bool) -> None:
    operators = _sampled(mode, padding, corners, 3, dtype=torch.float32, opset=20)
    is_limit = (mode, padding, corners) == ("nearest", "reflection", False)
    assert ("GridSample" not in operators) if is_limit else (operators == ["GridSample"])


def test_dynamic_sizes_of_images() -> None:
    model = VariadicFunction(lambda x, g: F.grid_sample(x, g, "bicubic", "reflection", False)).eval()
    specs = ({0: "n", 2: "h", 3: "w"}, {0: "n", 1: "m"})
    program = fxonnx.export(model, (torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 2)), dynamic_shapes=(specs,))
    assert [node.op_type for node in program.model.graph] == ["GridSample"]
    x, grid = torch.randn(3, 3, 7, 6), torch.randn(3, 5, 4, 2)
    torch.testing.assert_close(program(x, grid)[0], model(x, grid), rtol=1e-5, atol=1e-5)
