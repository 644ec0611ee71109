"""Models of transformers with unusual requirements."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxonnx

from ..saved import run_from_file
from .torchvision_shim import import_torchvision

TEXT = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "sliding_window": 8,
    "query_pre_attn_scalar": 8,
}


@pytest.fixture
def transformers() -> Any:
    import_torchvision()
    return pytest.importorskip("transformers")


def expect_verified(model: torch.nn.Module, **inputs: torch.Tensor) -> fxonnx.ONNXProgram:
    """Export a model and compare all outputs and their number."""
    return fxonnx.export(model.eval(), (), kwargs=inputs, verify=True)


def test_sew_d_whose_symbolic_function_asks_torch_onnx_for_types(transformers: Any) -> None:
    torch.manual_seed(0)
    config = transformers.SEWDConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(8, 8, 8),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 2),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        max_position_embeddings=64,
        position_buckets=16,
    )
    expect_verified(transformers.SEWDModel(config), input_values=torch.randn(1, 800))


def test_t5gemma2_whose_masks_index_inside_of_vmap(transformers: Any) -> None:
    torch.manual_seed(0)
    layers = {"layer_types": ["sliding_attention", "full_attention"]}
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    encoder = {
        "text_config": TEXT | layers,
        "vision_config": vision | {"image_size": 28, "patch_size": 14},
        "image_token_index": 60,
        "boi_token_index": 61,
        "eoi_token_index": 62,
        "mm_tokens_per_image": 4,
    }
    config = transformers.T5Gemma2Config(encoder=encoder, decoder=TEXT | layers, image_token_index=60, vocab_size=64)
    ids, mask = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[1, 1, 1, 0]])
    expect_verified(
        transformers.T5Gemma2ForConditionalGeneration(config),
        input_ids=ids,
        attention_mask=mask,
        decoder_input_ids=ids,
        decoder_attention_mask=mask,
    )


def test_t5gemma_returns_as_many_values_as_in_torch(transformers: Any) -> None:
    torch.manual_seed(0)
    config = transformers.T5GemmaConfig(encoder=TEXT, decoder=dict(TEXT), vocab_size=64)
    ids = torch.tensor([[5, 6, 7, 8]])
    model = transformers.T5GemmaForConditionalGeneration(config)
    program = expect_verified(model, input_ids=ids, decoder_input_ids=ids)
    # Keys and values of two self and two cross attentions, the length of one sliding cache, and three more.
    assert len(program.model.graph.outputs) == 4 * 2 + 1 + 3


def test_siglip2_whose_position_embeddings_are_resized_to_each_image(transformers: Any) -> None:
    torch.manual_seed(0)
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Siglip2VisionConfig(**vision, patch_size=4, num_patches=16)
    model = transformers.Siglip2VisionModel(config).eval()

    def inputs(patches: int, *grids: tuple[int, int]) -> dict[str, torch.Tensor]:
        mask = torch.stack([torch.arange(patches) < height * width for height, width in grids])
        pixels = torch.rand(len(grids), patches, 48)
        return {"pixel_values": pixels, "pixel_attention_mask": mask.int(), "spatial_shapes": torch.tensor(grids)}

    patches = {0: "images", 1: "patches"}
    shapes = {"pixel_values": patches, "pixel_attention_mask": patches, "spatial_shapes": {0: "images"}}
    program = fxonnx.export(model, kwargs=inputs(20, (3, 5), (4, 4)), dynamic_shapes=shapes)
    run_from_file(program)
    for given in (inputs(20, (3, 5), (4, 4)), inputs(24, (2, 7), (6, 3), (1, 1)), inputs(36, (6, 6))):
        with torch.no_grad():
            expected = model(**given).to_tuple()
        for ours, theirs in zip(program(**given), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
