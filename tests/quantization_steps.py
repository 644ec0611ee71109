"""Comparison of quantized results, in quantization steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

__all__ = ["MISMATCHES", "check_steps", "fbgemm", "values", "weights"]

MISMATCHES = 0.02
"""Largest share of elements that differ, by one step: sums that round at a tie in torch or in ONNX Runtime."""


@pytest.fixture(autouse=True)
def fbgemm() -> Iterator[None]:
    """Transposed convolutions of the default engine, x86, are wrong in torch 2.13; for modules that import this."""
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    yield
    torch.backends.quantized.engine = engine


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check_steps(
    expected: torch.Tensor, actual: torch.Tensor, step: float, name: str, share: float = MISMATCHES, steps: int = 1
) -> None:
    """Check that results agree but for one quantization step, or ``steps``, of few elements.

    A wrong zero point changes nearly all elements, a wrong scale the largest by more than a step.
    """
    assert expected.shape == actual.shape, name
    expected, actual = expected.float(), actual.float()
    difference = (expected - actual).abs()
    assert difference.max().item() <= 1.01 * steps * step + 1e-5 * expected.abs().max().item(), name
    wrong = (difference > 0.5 * step + 1e-6).sum().item()
    assert wrong <= max(share * expected.numel(), 1), name
    assert len(expected.unique()) > 1, name


def weights(*shape: int, axis: int | None = 0, seed: int = 2) -> torch.Tensor:
    """A quantized weight, per channel of an axis or per tensor."""
    weight = values(*shape, seed=seed) * 0.3
    if axis is None:
        return torch.quantize_per_tensor(weight, 0.01, 0, torch.qint8)
    scales = torch.linspace(0.005, 0.01, shape[axis], dtype=torch.float64)
    return torch.quantize_per_channel(weight, scales, torch.zeros(shape[axis], dtype=torch.int64), axis, torch.qint8)
