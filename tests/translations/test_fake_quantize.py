from __future__ import annotations

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten
ONE = torch.tensor([1])
OFF = torch.tensor([0])
X = T(("n", 3, "m"))
FIXED = T((4, 3, 5))
"""torch has no kernels of quantized tensors for dynamic shapes."""
SCALES = torch.tensor([0.02, 0.1, 1.7])
ZEROS = torch.tensor([0, 3, 100], dtype=torch.int32)
SHIFTS = torch.tensor([0.5, 3.25, 100.0])
QDQ = ("QuantizeLinear", "DequantizeLinear")
LIMITS = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, 0.0, -0.0])
_per_tensor = torch.fake_quantize_per_tensor_affine
_per_channel = torch.fake_quantize_per_channel_affine

PER_TENSOR = "aten.fake_quantize_per_tensor_affine.default"
PER_CHANNEL = "aten.fake_quantize_per_channel_affine.default"

CASES = (
    Case(
        "aten.quantize_per_tensor.default",
        lambda x: aten.dequantize.self(aten.quantize_per_tensor.default(x, 0.013, 3, torch.quint8)),
        (FIXED,),
        ops=QDQ,
    ),
    Case(
        "aten.quantize_per_tensor.tensor_qparams",
        lambda x, scale, zero: aten.dequantize.self(
            aten.quantize_per_tensor.tensor_qparams(x, scale, zero, torch.qint8)
        ),
        (FIXED, torch.tensor([0.02]), torch.tensor([5])),
    ),
    Case(
        "aten.dequantize.self",
        lambda x: aten.dequantize.self(aten.quantize_per_tensor.default(x, 0.013, 3, torch.quint8).relu().unsqueeze(0)),
        (FIXED,),
    ),
    Case(PER_TENSOR, lambda x: _per_tensor(x, 0.013, 3, 0, 255), (X,), ops=QDQ),
    Case(PER_TENSOR, lambda x: _per_tensor(x, 0.1, 0, -128, 127), (X,), "signed", 11, ops=QDQ),
    Case(
        PER_TENSOR,
        lambda x: _per_tensor(x, 0.01, 0, -127, 127),
        (X,),
        "narrow",
        ops=("QuantizeLinear", "Clip", "DequantizeLinear"),
    ),
    Case(PER_TENSOR, lambda x: _per_tensor(x, 1e-4, 5, 0, 65535), (X,), "16-bits", 23, ops=QDQ),
    Case(PER_TENSOR, lambda x: _per_tensor(x, 1e-4, 5, 0, 65535), (X,), "16-bits-13", 13),
    Case(PER_TENSOR, lambda x: _per_tensor(x, 1e-5, 5, -(2**17), 2**17), (X,), "18-bits"),
    Case(PER_TENSOR, lambda x: _per_tensor(x, 0.1, 3, 0, 255), (LIMITS,), "limits"),
    Case(PER_TENSOR, lambda x: _per_tensor(x, 0.1, 3, 0, 255), (T(()),), "0-dim"),
    *(
        Case(PER_TENSOR, lambda x: _per_tensor(x, 0.1, 3, 0, 255), (T((7,), dtype),), str(dtype))
        for dtype in (torch.float16, torch.bfloat16, torch.float64)
    ),
    Case(
        "aten.fake_quantize_per_tensor_affine.tensor_qparams",
        lambda x, scale, zero: _per_tensor(x, scale, zero, 0, 255),
        (X, T((), low=0.01, high=0.02), T((), torch.int32, 0, 9)),
    ),
    Case(
        "aten.fake_quantize_per_tensor_affine_cachemask.default",
        lambda x: aten.fake_quantize_per_tensor_affine_cachemask(x, 0.01, 3, 0, 255),
        (X,),
    ),
    *(
        Case(
            "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default",
            lambda x, on: aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
                x, SCALES[:1], ZEROS[:1], on, 0, 255
            ),
            (X, on),
            name,
        )
        for name, on in (("on", ONE), ("off", OFF))
    ),
    *(
        Case(PER_CHANNEL, lambda x: _per_channel(x, SCALES, ZEROS, 1, 0, 255), (X,), f"{opset}", opset)
        for opset in (11, 13, 23)
    ),
    Case(PER_CHANNEL, lambda x: _per_channel(x, SCALES, SHIFTS, 1, 0, 255), (X,), "float-zero-points"),
    Case(PER_CHANNEL, lambda x: _per_channel(x, SCALES, ZEROS, 0, -7, 127), (T((3, 4)),), "first-axis"),
    Case(
        "aten.fake_quantize_per_channel_affine_cachemask.default",
        lambda x: aten.fake_quantize_per_channel_affine_cachemask(x, SCALES, ZEROS, 1, 0, 255),
        (X,),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_eager(case: Case) -> None:
    run(case)
