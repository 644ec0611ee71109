"""``F.unfold`` and ``F.fold`` (aten::im2col, aten::col2im)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxonnx

from .harness import Case, T, run

CASES = (
    Case("aten.im2col.default", lambda x: F.unfold(x, 2, stride=2), (T(("n", 3, 8, 10)),)),
    Case("aten.im2col.default", lambda x: F.unfold(x, (3, 2), 1, 1), (T((2, 3, 8, 10), torch.float64),), "float64"),
    Case("aten.col2im.default", lambda x: F.fold(x, (4, 6), 2, stride=2), (T(("n", 12, 6)),), ops=("Col2Im",)),
    Case("aten.col2im.default", lambda x: F.fold(x, (4, 6), 2, stride=2), (T((12, 6)),), "unbatched"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows(case: Case) -> None:
    run(case)


BLOCKS: dict[str, tuple[Any, ...]] = {
    "adjacent": (2, 1, 0, 2),
    "overlapping": ((3, 2), (1, 2), (1, 0), (2, 1)),
    "dilated": (3, 2, 2, 1),
    "single": (1, 1, 0, 1),
}


class Unfold(nn.Module):
    def __init__(self, blocks: tuple[Any, ...], *, fold: bool) -> None:
        super().__init__()
        self.blocks = blocks
        self.fold = fold

    def forward(self, x: Tensor) -> Tensor:
        columns = F.unfold(x, *self.blocks)
        return F.fold(columns * 2, x.shape[-2:], *self.blocks) if self.fold else columns


@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
@pytest.mark.parametrize(
    ("dtype", "opset"),
    [(torch.float32, 20), (torch.float32, 17), (torch.float16, 20), (torch.bfloat16, 20), (torch.float64, 20)],
    ids=str,
)
@pytest.mark.parametrize("fold", [False, True], ids=["unfold", "fold"])
@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS)
def test_blocks(blocks: tuple[Any, ...], fold: bool, dtype: torch.dtype, opset: int) -> None:
    def image(*shape: int) -> Tensor:
        return torch.randint(0, 5, shape).to(dtype)

    model = Unfold(blocks, fold=fold).eval()
    program = fxonnx.export(
        model, (image(2, 3, 8, 10),), opset_version=opset, dynamic_shapes=({0: "batch", 2: "height", 3: "width"},)
    )
    for shape in ((2, 3, 8, 10), (1, 3, 12, 6), (3, 3, 16, 16)):
        x = image(*shape)
        assert torch.equal(program(x)[0], model(x))


@pytest.mark.parametrize("fold", [False, True], ids=["unfold", "fold"])
def test_without_batch(fold: bool) -> None:
    model, x = Unfold(BLOCKS["overlapping"], fold=fold).eval(), torch.randn(3, 8, 10)
    torch.testing.assert_close(fxonnx.export(model, (x,))(x)[0], model(x))


@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
def test_after_strided_convolutions() -> None:
    """The height of the blocks is a quotient of quotients of the input's, as in MobileViTv2."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1))

        def forward(self, x: Tensor) -> Tensor:
            x = self.layers(x)
            return F.fold(F.unfold(x, 2, stride=2) * 2, x.shape[-2:], 2, stride=2)

    model = Model().eval()
    auto = torch.export.Dim.AUTO
    program = fxonnx.export(model, (torch.randn(2, 3, 32, 32),), dynamic_shapes=({0: auto, 2: auto, 3: auto},))
    for shape in ((3, 3, 48, 64), (1, 3, 40, 24)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x)[0], model(x), atol=1e-5, rtol=1e-4)
    assert "Col2Im" in {node.op_type for node in program.model.graph}
