from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
import torch
import torch.onnx.ops

import fxonnx

from .harness import SIZES, Case, T, run


def _rotated(**options: Any) -> Any:
    return lambda x, cos, sin: torch.onnx.ops.rotary_embedding(x, cos, sin, **options)


def _rotated_at(**options: Any) -> Any:
    return lambda x, cos, sin, position: torch.onnx.ops.rotary_embedding(x, cos, sin, position, **options)


def _attention(**options: Any) -> Any:
    return lambda *inputs: torch.onnx.ops.attention(*inputs, **options)


def _zeros_by_sub(x: torch.Tensor) -> torch.Tensor:
    # Eager torch returns zeros for symbolic operators.
    return torch.relu(torch.onnx.ops.symbolic("Sub", (x, x), dtype=x.dtype, shape=x.shape, version=14))


def _parts_of_zeros(x: torch.Tensor) -> list[torch.Tensor]:
    shape = (x.shape[0], 1)
    parts = torch.onnx.ops.symbolic_multi_out(
        "ai.onnx::Split", (x * 0,), {"axis": 1}, dtypes=(x.dtype, x.dtype), shapes=(shape, shape), version=13
    )
    return list(parts)


ROTARY = "onnx.RotaryEmbedding.opset23"
ATTENTION = "onnx.Attention.opset23"
ROTATED: tuple[tuple[int | str, ...], ...] = (("n", 2, "m", 8), ("n", "m", 4), ("n", "m", 4))
POSITIONS = T(("n", "m"), torch.int64, 0, 9)
HEADS = (T(("n", 3, 2, 8)), T(("n", 3, "t", 8)), T(("n", 3, "t", 8)))
FLAT = (T(("n", 3, 16)), T(("n", "t", 8)), T(("n", "t", 8)))
UNSEEN = torch.tensor([[True], [False]])
PAST = (T(("n", 3, "m", 8)), T(("n", 3, "m", 8)))

CASES = (
    Case("onnx_symbolic._symbolic.default", _zeros_by_sub, (T(("n", 3)),), ops=("Sub", "Relu")),
    Case("onnx_symbolic._symbolic_multi_out.default", _parts_of_zeros, (T(("n", 2)),), opset=17),
    *(
        case
        for opset in (13, 20, 23)
        for case in (
            Case(ROTARY, _rotated(), (T(("n", 2, "m", 8)), T(("n", "m", 4)), T(("n", "m", 4))), f"{opset}", opset),
            Case(
                ROTARY,
                _rotated(interleaved=True),
                (T(("n", 2, "m", 8)), T(("n", "m", 4)), T(("n", "m", 4))),
                f"interleaved-{opset}",
                opset,
            ),
            Case(
                ROTARY,
                _rotated_at(num_heads=2),
                (T(("n", "m", 16)), T((9, 4)), T((9, 4)), POSITIONS),
                f"flat-{opset}",
                opset,
            ),
            Case(
                ROTARY,
                _rotated_at(num_heads=2, rotary_embedding_dim=4, interleaved=True),
                (T(("n", "m", 16)), T((9, 2)), T((9, 2)), POSITIONS),
                f"partial-{opset}",
                opset,
            ),
            Case(ATTENTION, _attention(), HEADS, f"{opset}", opset),
            Case(ATTENTION, _attention(is_causal=True), HEADS, f"causal-{opset}", opset),
            Case(ATTENTION, _attention(scale=0.3), (*HEADS, UNSEEN), f"bool-mask-{opset}", opset),
            Case(ATTENTION, _attention(), (*HEADS, T((2, "t"))), f"mask-{opset}", opset),
            Case(ATTENTION, _attention(softcap=2.0), (*HEADS, T((2, "t"))), f"softcap-mask-{opset}", opset),
            Case(ATTENTION, _attention(softcap=2.0), HEADS, f"softcap-{opset}", opset),
            Case(ATTENTION, _attention(q_num_heads=4, kv_num_heads=2), FLAT, f"flat-shared-{opset}", opset),
            Case(ATTENTION, _attention(softmax_precision=11), HEADS, f"softmax_precision-{opset}", opset),
        )
    ),
    *(
        Case(ATTENTION, _attention(qk_matmul_output_mode=mode, softcap=2.0), (*HEADS, T((2, "t"))), f"mode-{mode}")
        for mode in (1, 2, 3)
    ),
    Case(ATTENTION, lambda q, k, v, *past: torch.onnx.ops.attention(q, k, v, None, *past), (*HEADS, *PAST), "past"),
    Case(
        ATTENTION,
        lambda q, k, v, *past: torch.onnx.ops.attention(q, k, v, None, *past, is_causal=True),
        (*HEADS, *PAST),
        "causal-past",
        23,
    ),
    Case(ATTENTION, _attention(), (T(("n", "m", 2, 8)), T(("n", "m", "t", 8)), T(("n", "m", "t", 8))), "dynamic-heads"),
    # torch rounds the scaled queries and keys to half before it multiplies them for the fourth output.
    *(
        Case(
            ATTENTION,
            _attention(is_causal=True),
            tuple(T(heads.shape, dtype) for heads in HEADS),
            f"{dtype}-{opset}",
            opset,
            rtol=tolerance,
            atol=tolerance,
        )
        for dtype, tolerance in ((torch.float16, 4e-3), (torch.bfloat16, 6e-2))
        for opset in (20, 23)
    ),
    # torch rounds the products before it subtracts them.
    *(
        Case(
            ROTARY,
            _rotated(),
            tuple(T(shape, dtype) for shape in ROTATED),
            f"{dtype}-{opset}",
            opset,
            rtol=tolerance,
            atol=tolerance,
        )
        for dtype, tolerance in ((torch.float16, 4e-3), (torch.bfloat16, 3e-2))
        for opset in (20, 23)
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_eager(case: Case) -> None:
    run(case)


class _Symbolic(torch.nn.Module):
    def __init__(self, name: str, attributes: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__()
        self.name, self.attributes, self.options = name, attributes, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        options = {"dtype": x.dtype, "shape": x.shape} | self.options
        return torch.onnx.ops.symbolic(self.name, (x, None, x), self.attributes, **options)


def test_an_operator_of_another_domain_is_emitted_verbatim() -> None:
    attributes = {
        "flag": True,
        "count": 3,
        "factor": 0.5,
        "mode": "fast",
        "sizes": [1, 2],
        "factors": [0.5, 1.0],
        "names": ["a", "b"],
    }
    model = _Symbolic("shop::Sell", attributes, version=4, metadata_props={"label": "first"})
    program = fxonnx.export(model, (torch.ones(SIZES["n"][0], 3),), dynamic_shapes=({0: "n"},))
    (node,) = program.model.graph
    assert (node.domain, node.op_type) == ("shop", "Sell")
    assert program.model.opset_imports["shop"] == 4
    assert {key: attribute.value for key, attribute in node.attributes.items()} == {
        **attributes,
        "flag": 1,
        "sizes": (1, 2),
        "factors": (0.5, 1.0),
        "names": ("a", "b"),
    }
    assert [value is None for value in node.inputs] == [False, True, False]
    assert node.metadata_props["label"] == "first"
    assert str(node.outputs[0].shape) == "[n,3]"


def test_an_element_type_that_torch_lacks_is_kept() -> None:
    class Pack(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            packed = torch.onnx.ops.symbolic("shop::Pack", (x,), dtype=int(ir.DataType.INT4), shape=x.shape)
            return torch.onnx.ops.symbolic("shop::Unpack", (packed,), dtype=torch.float32, shape=x.shape)

    pack, _ = fxonnx.export(Pack(), (torch.ones(2, 3),)).model.graph
    assert pack.outputs[0].dtype == ir.DataType.INT4


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_Symbolic("Nothing"), "ONNX has no Nothing at opset 20"),
        (_Symbolic("Clip", version=6), "Clip is requested as of opset 6"),
        (
            torch.nn.Sequential(_Symbolic("shop::A", version=1), _Symbolic("shop::B", version=2)),
            "a model has one version per domain",
        ),
    ],
)
def test_calls_without_an_onnx_form_are_rejected(model: torch.nn.Module, message: str) -> None:
    with pytest.raises(fxonnx.UnsupportedOperatorError, match=message):
        fxonnx.export(model, (torch.ones(2),))


def test_attention_with_different_head_sizes_is_rejected() -> None:
    class Model(torch.nn.Module):
        def forward(self, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.onnx.ops.attention(q, q, v)[0]

    with pytest.raises(fxonnx.UnsupportedOperatorError, match="wrong if the head sizes of V and K differ"):
        fxonnx.export(Model(), (torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 5)))
