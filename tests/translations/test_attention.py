"""Scaled dot-product attention."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

import fxonnx

from ..functions import Function
from .harness import Case, T, run

Q, K, V = T((2, 4, "t", 8)), T((2, 4, "m", 8)), T((2, 4, "m", 6))
GROUPED_K, GROUPED_V = T((2, 2, "m", 8)), T((2, 2, "m", 6))
TARGET = "aten.scaled_dot_product_attention.default"
flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_TARGET = "aten._scaled_dot_product_flash_attention_for_cpu.default"

CASES = (
    Case(TARGET, sdpa, (Q, K, V)),
    Case(TARGET, lambda q, k, v: sdpa(q, k, v, scale=0.3), (T((3, 5, 8)), T((3, 7, 8)), T((3, 7, 2))), "3d, scale"),
    Case(TARGET, lambda q, k, v: sdpa(q, k, v, is_causal=True), (Q, K, V), "causal"),
    Case(TARGET, sdpa, (Q, K, V, T(("t", "m"))), "float mask"),
    Case(TARGET, sdpa, (Q, K, V, T((2, 1, "t", "m"), torch.bool)), "bool mask"),
    Case(
        TARGET,
        sdpa,
        (
            T((1, 1, 3, 4)),
            T((1, 1, 2, 4)),
            T((1, 1, 2, 4)),
            torch.tensor([[True, True], [False, False], [True, False]]),
        ),
        "all masked",
    ),
    Case(TARGET, lambda q, k, v: sdpa(q, k, v, enable_gqa=True), (Q, GROUPED_K, GROUPED_V), "grouped heads"),
    Case(
        TARGET,
        lambda q, k, v: sdpa(q, k, v, enable_gqa=True),
        (T((2, "h", "t", 8)), T((2, 1, "m", 8)), T((2, 1, "m", 6))),
        "dynamic query heads of one group",
    ),
    Case(
        TARGET,
        lambda q, k, v: sdpa(torch.cat([q, q], 1), k, v, enable_gqa=True),
        (T((2, "n", "t", 8)), T((2, "n", "m", 8)), T((2, "n", "m", 6))),
        "dynamic grouped heads",
    ),
    Case(TARGET, sdpa, (Q, K, V), "opset 13", opset=13),
    Case(
        TARGET,
        lambda q, k, v: sdpa(q, k, v, torch.ones(3, 5, dtype=torch.bool).tril()),
        (T((2, 1, 3, 4)), T((2, 1, 5, 4)), T((2, 1, 5, 6))),
        "known mask",
    ),
    *(
        Case(TARGET, function, inputs, f"{name}, opset {opset}", opset=opset, ops=("Attention",))
        for opset in (23, 24)
        for name, function, inputs in (
            ("plain", sdpa, (Q, K, V)),
            ("scale", lambda q, k, v: sdpa(q, k, v, scale=0.3), (Q, K, V)),
            ("causal", lambda q, k, v: sdpa(q, k, v, is_causal=True), (Q, K, V)),
            ("bool mask", sdpa, (Q, K, V, T((2, 1, "t", "m"), torch.bool))),
            ("grouped heads", lambda q, k, v: sdpa(q, k, v, enable_gqa=True), (Q, GROUPED_K, GROUPED_V)),
            (
                "all masked",
                sdpa,
                (*(T((1, 1, s, 4)) for s in (3, 2, 2)), torch.tensor([[True, True], [False, False], [True, False]])),
            ),
        )
    ),
    *(Case(TARGET, sdpa, (Q, K, V, T(("t", "m"))), f"float mask, opset {opset}", opset=opset) for opset in (23, 24)),
    *(
        Case(
            TARGET,
            sdpa,
            (*(T((1, 1, s, 4)) for s in (3, 2, 2)), torch.tensor([[0.0, lowest], [lowest, lowest], [lowest, 0.0]])),
            f"rows hidden by {lowest:.0e}, opset {opset}",
            opset=opset,
        )
        for opset in (13, 20, 23, 24)
        for lowest in (-math.inf, -1e4, torch.finfo(torch.float32).min)
    ),
    Case(TARGET, sdpa, (Q, K, V, T((2, 1, 1, "m"), torch.bool)), "mask for all queries, opset 23", opset=23),
    Case(TARGET, sdpa, tuple(T(t.shape, torch.float64) for t in (Q, K, V)), "double, opset 23", opset=23),
    Case(TARGET, sdpa, (T((3, 5, 8)), T((3, 7, 8)), T((3, 7, 2))), "3d, opset 23", opset=23),
    *(Case(FLASH_TARGET, flash, (Q, K, T(K.shape)), f"opset {opset}", opset=opset) for opset in (17, 20, 23)),
    *(
        Case(FLASH_TARGET, flash, tuple(T(t.shape, dtype) for t in (Q, K, K)), str(dtype), rtol=rtol, atol=rtol)
        for dtype, rtol in ((torch.float64, 1e-6), (torch.float16, 4e-3), (torch.bfloat16, 0.05))
    ),
    Case(FLASH_TARGET, lambda q, k, v: flash(q, k, v, is_causal=True, scale=0.3), (Q, K, K), "causal, scale"),
    Case(FLASH_TARGET, lambda q, k, v, m: flash(q, k, v, attn_mask=m), (Q, K, K, T(("t", "m"))), "float mask"),
    Case(
        FLASH_TARGET,
        lambda q, k, v, m: flash(q, k, v, attn_mask=m),
        (
            *(T((1, 2, size, 4)) for size in (3, 2, 2)),
            torch.tensor([[0.0, 0.0], [-math.inf, -math.inf], [0.0, -math.inf]]),
        ),
        "all masked",
    ),
    Case(FLASH_TARGET, flash, (Q, GROUPED_K, GROUPED_K), "grouped heads"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(case: Case) -> None:
    run(case)


@pytest.mark.parametrize("opset", [20, 23])
def test_float64_attention_is_scaled_in_float64(opset: int) -> None:
    """ONNX Runtime fuses a single number into the product, as an attribute in float32."""
    model, x = Function(lambda x: sdpa(x, x, x)).eval(), torch.randn(1, 2, 5, 8).double()
    program = fxonnx.export(model, (x,), opset_version=opset)
    torch.testing.assert_close(program(x)[0], model(x), rtol=1e-13, atol=1e-13)
