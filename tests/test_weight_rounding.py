"""``QuantizeConfig(rounding="search")``: errors of weights, against rounding to nearest and all scales of a fine grid."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import fxonnx
from fxonnx import QuantizeConfig
from fxonnx.quantization.quantized_weight import QuantizedWeight, WeightScheme, quantize_rows


def weights(name: str) -> torch.Tensor:
    torch.manual_seed(0)
    normal = torch.randn(64, 1024)
    return {
        "normal": lambda: normal,
        "laplace": lambda: normal.sign() * torch.empty_like(normal).exponential_(),
        "outliers": lambda: torch.where(torch.rand_like(normal) < 0.002, 10 * normal, normal),
    }[name]()


def errors(weight: torch.Tensor, scheme: WeightScheme) -> torch.Tensor:
    """The sum of squared errors of each block."""
    found = torch.cat([exactly(rows).dequantize() for rows in quantize_rows(weight, scheme)])
    return (found - weight.double()).square().reshape(-1, scheme.block_size).sum(1)


def exactly(rows: QuantizedWeight) -> QuantizedWeight:
    """The same weight, which dequantizes in double precision."""
    return replace(rows, scales=rows.scales.double())


@pytest.mark.parametrize("block_size", [32, 128])
@pytest.mark.parametrize(
    ("symmetric", "dtype", "negative"),
    [(True, torch.float32, True), (True, torch.float16, False), (False, torch.float32, False)],
)
@pytest.mark.parametrize("name", ["normal", "laplace", "outliers"])
def test_no_block_has_a_larger_error(
    name: str, symmetric: bool, dtype: torch.dtype, negative: bool, block_size: int
) -> None:
    weight = weights(name).to(dtype)
    nearest = WeightScheme(4, block_size, symmetric, dtype, negative)
    before, after = errors(weight, nearest), errors(weight, replace(nearest, searches_scales=True))
    assert bool((after <= before * (1 + 1e-4)).all())
    assert after.sum() < 0.94 * before.sum()


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_error_is_near_that_of_the_best_scale(symmetric: bool) -> None:
    weight = weights("normal")[:8]
    scheme = WeightScheme(4, 64, symmetric, torch.float32, negative_scales=True)
    (rows,) = quantize_rows(weight, scheme)
    points = torch.full_like(rows.scales, 8) if rows.zero_points is None else rows.zero_points
    blocks, scales, points = weight.reshape(-1, 1, 64), rows.scales.reshape(-1, 1, 1), points.reshape(-1, 1, 1)
    tried = scales * torch.linspace(0.4, 1.2, 400)[:, None]
    codes = ((blocks / tried).round() + points).clamp(0, 15) - points
    best = (codes * tried - blocks).square().sum(2).min(1).values
    found = errors(weight, replace(scheme, searches_scales=True))
    assert found.sum() < 1.02 * best.sum()


def test_multiples_of_a_scale_are_exact() -> None:
    # Rounding to nearest has a scale with which the largest multiple, 7, has the code of -8.
    weight = 0.25 * torch.arange(-5.0, 8.0).repeat(5)[None, :64]
    scheme = WeightScheme(4, 64, True, torch.float32, negative_scales=True)
    assert float(errors(weight, scheme)) > 0.1
    assert float(errors(weight, replace(scheme, searches_scales=True))) < 1e-10


@pytest.mark.parametrize("symmetric", [True, False])
def test_results_do_not_depend_on_the_number_of_threads_or_on_other_rows(symmetric: bool) -> None:
    weight = weights("laplace").repeat(8, 1)
    scheme = WeightScheme(4, 32, symmetric, torch.float32, searches_scales=True)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        (whole,) = quantize_rows(weight, scheme)
        torch.set_num_threads(1)
        (part,) = quantize_rows(weight[-5:], scheme)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(whole.codes[-5:], part.codes)
    assert torch.equal(whole.scales[-5:], part.scales)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 0.0), (torch.float32, 1e-38), (torch.float16, 6e-8), (torch.float16, 6e4)]
)
def test_zeros_and_extreme_weights_stay_finite(symmetric: bool, dtype: torch.dtype, scale: float) -> None:
    weight = torch.linspace(-scale, scale, 64).to(dtype).reshape(2, 32)
    scheme = WeightScheme(4, 32, symmetric, dtype, searches_scales=True)
    found = torch.cat([exactly(rows).dequantize() for rows in quantize_rows(weight, scheme)])
    assert bool((found - weight.double()).abs().max() <= 0.2 * scale + torch.finfo(dtype).tiny)


@pytest.mark.parametrize("target", [None, "onnxruntime-genai"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_exported_layers_have_the_smaller_error(symmetric: bool, target: str | None) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(256, 96, bias=False).eval(), torch.randn(64, 256)
    model.weight.data = weights("normal")[:, :384].reshape(96, 256).clone()
    found = {}
    for rounding in ("nearest", "search"):
        config = QuantizeConfig(block_size=128, symmetric=symmetric, rounding=rounding)
        program = fxonnx.export(model, (x,), quantize=config, target=target, verify=True)  # type: ignore[arg-type]
        found[rounding] = float((program.quantization.call_in_float(x)[0] - model(x)).norm())
    assert found["search"] < 0.99 * found["nearest"]


def test_important_features_have_the_smaller_error() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(256, 96, bias=False).eval(), torch.randn(64, 256)
    x[:, ::16] *= 20
    errors = []
    for importance in ({}, {"weight": x.square().mean(0)}, {"weight": torch.ones(7)}):
        config = QuantizeConfig(rounding="search", symmetric=False, importance=importance)
        program = fxonnx.export(model, (x,), quantize=config, verify=True)
        assert program.quantization is not None
        errors.append(float((program.quantization.call_in_float(x)[0] - model(x)).norm()))
    assert errors[1] < 0.8 * errors[0]
    assert errors[2] == errors[0]
