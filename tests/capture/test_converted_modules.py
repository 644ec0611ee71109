"""Modules that forward converts: ``self.classifier = self.classifier.to(torch.float32)``."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import fxonnx


class Unchanged(nn.Module):
    """Switch Transformers' router: a conversion that changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.classifier = self.classifier.to(torch.float32)
        return self.classifier(x)


class Widened(nn.Module):
    """Layers in half precision, which compute in single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).half()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers.float()(x)


class Narrowed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.half()(x.half()).float()


@pytest.mark.parametrize("kind", [Unchanged, Widened, Narrowed])
def test_converted_in_forward(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    before = {name: (value, value.dtype, value.clone()) for name, value in model.state_dict(keep_vars=True).items()}
    program = fxonnx.export(model, (torch.randn(2, 4),), dynamic_shapes=({0: "batch"},))
    after = model.state_dict(keep_vars=True)
    assert list(before) == list(after)
    for name, (value, dtype, content) in before.items():
        assert after[name] is value
        assert value.dtype == dtype
        assert torch.equal(value, content)
    for batch in (2, 1, 5):
        x = torch.randn(batch, 4)
        torch.testing.assert_close(program(x)[0], copy.deepcopy(model)(x), atol=1e-3, rtol=1e-3)
