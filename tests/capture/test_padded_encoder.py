"""Padded rows of ``nn.TransformerEncoder``: as eager torch has them in the grad mode of the export."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxonnx
from tests.saved import run_from_file

MASKS = {
    "ends": [[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 1, 1, 1, 1]],
    "all padded": [[0, 0, 0, 0, 1], [0, 0, 0, 1, 1], [0, 1, 1, 1, 1]],
    "beginnings": [[1, 0, 0, 0, 0], [0, 0, 1, 0, 1], [0, 1, 1, 1, 1]],
    "none": [[0, 0, 0, 0, 0]] * 3,
}


class Padded(nn.Module):
    def __init__(self, layer: dict[str, Any], **options: Any) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **layer), 2, **options
        )
        if self.encoder.norm is not None:
            nn.init.normal_(self.encoder.norm.bias)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.encoder(x, src_key_padding_mask=padding)


MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "norm": ({}, {"norm": nn.LayerNorm(8)}),
    "no nested tensors": ({}, {"enable_nested_tensor": False}),
    "norm first": ({"norm_first": True}, {}),
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("example", ["ends", "beginnings"])
@pytest.mark.parametrize("gradients", ["none", "without requires_grad", "all"])
@pytest.mark.parametrize("kind", MODELS)
def test_padded_rows(kind: str, gradients: str, example: str) -> None:
    layer, options = MODELS[kind]
    model = Padded(layer, **options).eval().requires_grad_(gradients != "without requires_grad")
    inputs = (torch.randn(3, 5, 8), torch.tensor(MASKS[example]).bool())
    with torch.set_grad_enabled(gradients != "none"):
        program = fxonnx.export(model, inputs, dynamic_shapes=({0: "b", 1: "t"}, {0: "b", 1: "t"}), verify=True)
        run_from_file(program)
        for mask in MASKS.values():
            x, padding = torch.randn(3, 5, 8), torch.tensor(mask).bool()
            torch.testing.assert_close(program(x, padding)[0], model(x, padding).detach(), rtol=1e-4, atol=1e-5)


def test_an_export_with_gradients_says_what_inference_returns() -> None:
    inputs = (torch.randn(3, 5, 8), torch.tensor(MASKS["ends"]).bool())
    with pytest.warns(
        UserWarning, match=r"hides to zero; (?s:.*)at: .*padded_encoder\.py:\d+ (?s:.*)hint: export within"
    ) as shown:
        fxonnx.export(Padded({}).eval(), inputs)
    ours = [one for one in shown if "hides to zero" in str(one.message)]
    assert [one.filename for one in ours] == [__file__]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_inputs_of_which_a_row_has_no_tokens() -> None:
    """For these, eager torch raises an error, and the proof has others."""
    model = Padded({}).eval()
    inputs = (torch.randn(2, 5, 8), torch.tensor(MASKS["none"][:2]).bool())
    with torch.no_grad():
        program = fxonnx.export(model, inputs, dynamic_shapes=({0: "b", 1: "t"}, {0: "b", 1: "t"}))
        given = torch.randn(2, 3, 8), torch.tensor([[0, 0, 1], [0, 1, 1]]).bool()
        torch.testing.assert_close(program(*given)[0], model(*given))


def test_an_encoder_that_does_not_check_the_mask() -> None:
    model = Padded({}, mask_check=False).eval()
    with torch.no_grad():
        program = fxonnx.export(model, (torch.randn(3, 5, 8), torch.tensor(MASKS["ends"]).bool()))
        for name in MASKS:
            x, padding = torch.randn(3, 5, 8), torch.tensor(MASKS[name]).bool()
            torch.testing.assert_close(program(x, padding)[0], model(x, padding), rtol=1e-4, atol=1e-5)
