"""Operators and functions whose own kernels specialize or narrow a dynamic size: correct without constraints."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxonnx

from ..functions import Function


@dataclass(frozen=True)
class Case:
    """A function of ``x``, whose dims ``n`` and ``m`` are dynamic."""

    name: str
    function: Callable[[torch.Tensor], Any]
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return self.name


_WINDOW = torch.hann_window(8)


def _spectra(x: torch.Tensor) -> torch.Tensor:
    return torch.stft(torch.cat([x, x, x, x, x], -1), 8, 2, 8, _WINDOW, return_complex=True)


def _filtered(x: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch.istft(_spectra(x) * 0.5, 8, 2, 8, _WINDOW, **options)


def _windows(x: torch.Tensor) -> torch.Tensor:
    """Windows of 2 times 2 elements of images whose sizes are products."""
    x = F.interpolate(x, scale_factor=2.0)
    batch, channels, height, width = x.shape
    x = x.reshape(batch, channels, height // 2, 2, width // 2, 2).transpose(3, 4)
    return F.silu(x.contiguous().transpose(2, 3)).transpose(2, 3)


def _cropped(x: torch.Tensor) -> torch.Tensor:
    """Images of which some columns are cropped, unless their number is a multiple of 4."""
    _, height, width, _ = x.shape
    padded = F.pad(x, (0, 0, 0, (4 - width % 4) % 4, 0, (4 - height % 4) % 4))
    return padded.roll((1, 1), (1, 2))[:, :height, :width]


CASES = (
    Case("reshape_of_a_crop", lambda x: _cropped(x).reshape(x.shape[0], -1, 3) * 2, (2, "n", "m", 3)),
    Case("reshape_of_a_crop_to_sizes", lambda x: _cropped(x).reshape(2, x.shape[1] * x.shape[2], 3), (2, "n", "m", 3)),
    Case("flatten_of_a_crop", lambda x: _cropped(x).flatten(1, 2).sum(-1), (2, "n", "m", 3)),
    Case("ravel_of_a_crop", lambda x: _cropped(x).ravel() * 2, ("n", 2, "m", 3)),
    Case("view_of_a_crop", lambda x: _cropped(x).transpose(1, 3).view(2, 3, 1, -1, x.shape[1]), (2, "n", "m", 3)),
    Case("max_pool1d", lambda x: F.max_pool1d(x, 2, ceil_mode=True), (2, 3, "n")),
    Case("max_pool1d_padded", lambda x: F.max_pool1d(x, 3, 2, 1), (3, "n")),
    Case("max_pool1d_indices", lambda x: F.max_pool1d(x, 3, 1, 1, return_indices=True), (2, 3, "n")),
    Case("take_along_dim", lambda x: torch.take_along_dim(x, x.argmax(1, keepdim=True), 1), ("n", "m")),
    Case(
        "take_along_dim_broadcast", lambda x: torch.take_along_dim(x, torch.tensor([[[1], [0], [1]]]), -1), ("n", 3, 2)
    ),
    Case("take_along_dim_flat", lambda x: torch.take_along_dim(x, x.argmax().reshape(1)), ("n", "m")),
    Case("cdist", lambda x: torch.cdist(x, x[:, :1] + 1), (2, "n", 3)),
    Case("cdist_p1", lambda x: torch.cdist(x, x, p=1.0), ("n", 3)),
    Case("fill_diagonal", lambda x: (x @ x.T).fill_diagonal_(0), ("n", 3)),
    Case("fill_diagonal_of_rows", lambda x: (x * 1).fill_diagonal_(2.5), ("n", "m")),
    Case("fill_diagonal_of_a_column", lambda x: (x * 1).fill_diagonal_(-1), ("n", 1)),
    Case("kron", lambda x: torch.kron(x, torch.tensor([[1.0, 2], [3, 4]])), ("n", "m")),
    Case("kron_of_ranks", lambda x: torch.kron(torch.tensor([1.0, 2]), x), ("n", 2, "m")),
    Case("isin", lambda x: torch.isin(x.round(), torch.tensor([[1.0, 2], [-1, 5]])), ("n", "m")),
    Case("isin_inverted", lambda x: torch.isin(x.round(), x[0].round(), invert=True), ("n", "m")),
    Case("isin_of_few", lambda x: torch.isin(torch.tensor([1.0, -2, 7]), x.round()), ("n", "m")),
    Case("isin_of_none", lambda x: torch.isin(x, x[:, :0]), ("n", "m")),
    Case("cartesian_prod", lambda x: torch.cartesian_prod(x, torch.arange(3.0), x * 2), ("n",)),
    Case("linspace", lambda x: torch.linspace(-1, 1, x.shape[0]) * x, ("n",)),
    Case("linspace_backwards", lambda x: torch.linspace(start=3.0, end=-2, steps=x.shape[0] + 1), ("n",)),
    Case("linspace_double", lambda x: torch.linspace(0, 1, x.shape[0] * 2, dtype=torch.float64), ("n",)),
    Case("linspace_empty", lambda x: torch.linspace(0, 1, x.shape[0] - 1), ("n",)),
    Case(
        "affine_grid",
        lambda x: F.affine_grid(torch.arange(12.0).reshape(2, 2, 3), [2, 1, *x.shape], align_corners=False),
        ("n", "m"),
    ),
    Case(
        "affine_grid_corners",
        lambda x: F.affine_grid(x.mean(2, True).expand(2, 2, 3), (2, 1, 3, x.shape[2]), align_corners=True),
        (2, 2, "m"),
    ),
    Case(
        "affine_grid_3d",
        lambda x: F.affine_grid(torch.arange(12.0).reshape(1, 3, 4), [1, 1, 2, *x.shape], align_corners=False),
        ("n", "m"),
    ),
    Case("avg_pool2d_global", lambda x: F.avg_pool2d(x, x.shape[2:]), (1, 2, "n", "m")),
    Case("max_pool2d_global", lambda x: F.max_pool2d(x, kernel_size=x.size()[2:]), (1, 2, "n", "m")),
    Case("avg_pool1d_global", lambda x: F.avg_pool1d(x, x.size(-1)), (1, 2, "n")),
    Case("max_pool3d_global", lambda x: F.max_pool3d(x, (2, x.size(3), x.size(4))), (1, 2, 2, "n", "m")),
    Case("gaussian_nll_loss", lambda x: F.gaussian_nll_loss(x, x + 1, x.abs() + 0.1, full=True), ("n", "m")),
    Case("gaussian_nll_loss_of_rows", lambda x: F.gaussian_nll_loss(x, -x, x.abs().amax(1)), ("n", "m")),
    Case("fft_of_a_length", lambda x: torch.view_as_real(torch.fft.fft(x, n=8)), ("n", "m")),
    Case("rfft_of_lengths", lambda x: torch.view_as_real(torch.fft.rfft2(x, s=(4, 6))), (2, "n", "m")),
    Case("irfft_of_lengths", lambda x: torch.fft.irfftn(x, s=(4, x.shape[1]), dim=(0, -1)), ("n", "m")),
    Case("istft_to_the_length_of_the_input", lambda x: _filtered(x, length=x.shape[-1]), (2, "n")),
    Case("istft_to_another_length", lambda x: _filtered(x, length=2 * x.shape[-1] + 3), ("m", "n")),
    Case("istft_of_a_method", lambda x: _spectra(x).istft(8, 2, 8, _WINDOW, length=x.shape[-1]), ("m", "n")),
    Case("istft_without_a_length", lambda x: _filtered(x), (2, "n")),
    Case("spectra_of_windows", lambda x: torch.view_as_real(torch.fft.rfft2(_windows(x))), (1, 2, "n", "m")),
    Case("filtered_windows", lambda x: torch.fft.irfft2(torch.fft.rfft2(_windows(x)) * 2, s=(2, 2)), (1, 2, "n", "m")),
    Case("scaled_size", lambda x: F.interpolate(x, scale_factor=2.0) + F.interpolate(x, scale_factor=2), (1, 1, "n")),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_correct_at_every_size_without_constraint(case: Case) -> None:
    def example(**sizes: int) -> torch.Tensor:
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in case.shape]
        return torch.linspace(-2, 3, torch.Size(shape).numel()).reshape(shape)

    model = Function(case.function).eval()
    dims = {axis: dim for axis, dim in enumerate(case.shape) if isinstance(dim, str)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = fxonnx.export(model, (example(n=5, m=4),), dynamic_shapes={"x": dims})
    assert program.record.constraints == ()
    for n, m in ((5, 4), (1, 1), (2, 3), (31, 7), (1, 30)):
        x = example(n=n, m=m)
        expected = torch.utils._pytree.tree_leaves(model(x))
        for ours, theirs in zip(program(x), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_fold_of_a_part_of_an_axis() -> None:
    model = Function(lambda x: F.fold(x[..., :9], 5, 2, padding=1, stride=2)).eval()
    with pytest.warns(UserWarning, match="n >= 9"):
        program = fxonnx.export(model, (torch.rand(2, 16, 9),), dynamic_shapes={"x": {0: "b", 2: "n"}})
    for shape in ((2, 16, 9), (3, 16, 14), (1, 16, 11)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x)[0], model(x))


def test_a_window_larger_than_the_input_is_a_constraint() -> None:
    model = Function(lambda x: F.max_pool1d(x, 4)).eval()
    with pytest.warns(UserWarning, match="n >= 4"):
        program = fxonnx.export(model, (torch.rand(2, 3, 9),), dynamic_shapes={"x": {2: "n"}})
    assert [str(constraint.text) for constraint in program.record.constraints] == ["n >= 4"]


def test_take_along_dim_rejects_indices_of_different_rank() -> None:
    with pytest.raises(fxonnx.CaptureError, match=r"the indices have 1 axes, the input has 2"):
        fxonnx.export(Function(lambda x: torch.take_along_dim(x, torch.tensor([0]), 1)), (torch.rand(4, 3),))


def test_cdist_rejects_different_numbers_of_coordinates() -> None:
    with pytest.raises(fxonnx.CaptureError, match=r"points of 3 and 2 coordinates"):
        fxonnx.export(Function(lambda x: torch.cdist(x, x[:, :2])), (torch.rand(4, 3),))
