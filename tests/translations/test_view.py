"""Views: operators that move or regroup elements."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten

X = T(("n", 3, 4))

CASES = (
    Case("aten._shape_as_tensor.default", torch._shape_as_tensor, (X,)),
    Case("aten._shape_as_tensor.default", torch._shape_as_tensor, (T((2, 3)),), "static"),
    Case("aten.view.default", lambda x: x.view(x.shape[0], 12), (X,), ops=("Reshape",)),
    Case("aten.view.default", lambda x: x.view(-1), (X,), "flat", ops=("Reshape",)),
    Case("aten.view.default", lambda x: x.view(2, -1, 3), (T((2, 3, "n", 4)),), "moved symbol"),
    Case("aten.view.default", lambda x: x.view(x.shape[0] * x.shape[1], 2, 2), (T(("n", "m", 4)),), "two symbols"),
    Case("aten._unsafe_view.default", lambda x: aten._unsafe_view.default(x, [x.shape[0], 12]), (X,)),
    Case("aten.reshape.default", lambda x: x.transpose(0, 1).reshape(3, -1), (X,), ops=("Transpose", "Reshape")),
    Case("aten.reshape.default", lambda x: x.reshape(0, 5), (torch.zeros(0, 5),), "empty"),
    Case("aten.reshape.default", lambda x: x.reshape(5, 0), (torch.zeros(0, 5),), "empty transposed"),
    Case("aten.flatten.using_ints", lambda x: x.flatten(1), (X,)),
    Case("aten.flatten.using_ints", lambda x: x.flatten(), (T(()),), "0-dim"),
    Case("aten.unflatten.int", lambda x: x.unflatten(1, (3, -1)), (T(("n", 12)),)),
    Case("aten.reshape_as.default", lambda x, y: x.reshape_as(y), (X, T(("n", 12)))),
    Case("aten.view.dtype", lambda x: (x.view(torch.int32), (x > 0).view(torch.uint8)), (X,), opset=26),
    *(
        Case("aten.view.dtype", partial(torch.Tensor.view, dtype=bits), (T(("n", 5), dtype, -1e4, 1e4),), f"{dtype}")
        for dtype, bits in (
            (torch.float32, torch.int32),
            (torch.float64, torch.int64),
            (torch.float16, torch.int16),
            (torch.bfloat16, torch.uint16),
        )
    ),
    Case(
        "aten.view.dtype",
        lambda x: (x.view(torch.uint16), x.view(torch.bfloat16)),
        (T(("n", 3), torch.int16, -9, 9),),
        "16",
        opset=26,
    ),
    Case("aten.view_as.default", lambda x, y: x.view_as(y), (X, T(("n", 12)))),
    Case("aten.squeeze.default", torch.squeeze, (T((1, "n", 1)),)),
    Case("aten.squeeze.dim", lambda x: x.squeeze(-1), (T((1, "n", 1)),)),
    Case("aten.squeeze.dim", lambda x: x.squeeze(1) + 1, (T((1, 3)),), "another size", ops=("Add",)),
    Case("aten.squeeze.dims", lambda x: x.squeeze((0, 2)), (T((1, "n", 1)),)),
    Case("fxonnx.squeeze_result.default", lambda x: torch.ops.fxonnx.squeeze_result(x, [0]), (T(("n", 3)),)),
    Case("aten.unsqueeze.default", lambda x: x.unsqueeze(-1), (X,)),
    Case("aten.permute.default", lambda x: x.permute(2, -3, 1), (X,), ops=("Transpose",)),
    Case("aten.transpose.int", lambda x: x.transpose(-1, 0), (X,)),
    Case("aten.transpose.int", lambda x: x.transpose(0, 1).transpose(0, 1) * 2, (X,), "twice", ops=("Mul",)),
    Case("aten.t.default", lambda x: x.t(), (T(("n", 3)),)),
    Case("aten.t.default", lambda x: x.t() + 1, (T((3,)),), "1d", ops=("Add",)),
    Case("aten.numpy_T.default", lambda x: x.T, (T(("n", 3)),)),
    Case("aten.expand.default", lambda x: x.expand(-1, 5), (T(("n", 1)),)),
    Case("aten.expand.default", lambda x: x.expand(2, -1, 3), (T(("n", 3)),), "new axis"),
    Case("aten.expand_as.default", lambda x, y: x.expand_as(y), (T((1, 3)), T(("n", 3)))),
    Case("aten.broadcast_tensors.default", lambda x, y: torch.broadcast_tensors(x, y), (T(("n", 1)), T((3,)))),
    Case(
        "aten.broadcast_tensors.default",
        lambda x, y: torch.broadcast_tensors(x.t()[0], y[..., :1]),
        (T(("n", 2)), T((2, 3))),
        "strided",
    ),
    Case("aten.broadcast_to.default", lambda x, y: x.broadcast_to(y.shape), (T((3,)), T(("n", 3)))),
    *(
        Case(f"aten.{name}.default", lambda x, n=name: getattr(aten, n).default(x) + 1, (X,), ops=("Add",))
        for name in (
            "alias",
            "detach",
            "clone",
            "contiguous",
            "positive",
            "resolve_conj",
            "resolve_neg",
            "lift_fresh_copy",
        )
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_view(case: Case) -> None:
    run(case)
