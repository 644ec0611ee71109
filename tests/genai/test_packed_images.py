"""Towers of images and audio of different sizes in one tensor: the saved file at many sizes equals transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import fxonnx
from benchmarks._multimodal_configs import make_multimodal
from fxonnx._transformers.families.vision_language import VISION_TOWERS
from fxonnx._transformers.sessions import Session

ort = pytest.importorskip("onnxruntime")
transformers = pytest.importorskip("transformers", minversion="5.23")
Inputs = dict[str, torch.Tensor]


def lfm2_vl(sizes: torch.Tensor) -> Inputs:
    """Patches of images of sizes that the projector joins by two, padded to one length."""
    length = int(sizes.prod(1).max()) + 4
    mask = (torch.arange(length) < sizes.prod(1, keepdim=True)).int()
    pixels = torch.randn(len(sizes), length, 48)
    return {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": sizes}


def minicpm(sizes: torch.Tensor) -> Inputs:
    """Patches of images in a row."""
    return {"pixel_values": torch.randn(1, 3, 4, 4 * int(sizes.prod(1).sum())), "target_sizes": sizes}


def phi4(sizes: torch.Tensor) -> Inputs:
    """Crops of images, the last rows and columns of which are padding."""
    count = int(sizes.prod(1).max()) + 1
    mask = torch.ones(len(sizes), count, 4, 4, dtype=torch.int64)
    for image, (rows, columns) in enumerate(sizes.tolist()):
        crops = torch.ones(rows, columns, 4, 4, dtype=torch.int64)
        crops[-1, :, 2 * (1 + image % 2) :] = 0
        crops[:, -1, :, 2 * (1 + rows % 2) :] = 0
        mask[image, 1 : 1 + rows * columns] = crops.flatten(0, 1)
    pixels = torch.randn(len(sizes), count, 3, 16, 16)
    return {"image_pixel_values": pixels, "image_sizes": 16 * sizes, "image_attention_mask": mask}


def qwen3_asr(sizes: torch.Tensor) -> Inputs:
    """Clips of a number of frames; windows are of two chunks of 100 frames."""
    frames = int(-(-sizes.max() // 100) * 100)
    mask = (torch.arange(frames) < sizes).long()
    return {"input_features": torch.randn(len(sizes), 16, frames), "input_features_mask": mask}


def features_of_phi4(model: Any, inputs: Inputs) -> torch.Tensor:
    """The embeddings of the tokens that features replace; the model returns no features by themselves."""
    embed = model.model.embed_tokens_extend.image_embed
    count = 0
    for crops, (height, width) in zip(inputs["image_attention_mask"], inputs["image_sizes"] // 16, strict=True):
        kept = crops[1 : 1 + height * width, ::2, ::2].reshape(height, width, 2, 2)
        rows, columns = int(kept[:, 0, :, 0].sum()), int(kept[0, :, 0].sum())
        count += rows * (columns + 1) + 1 + 6
    ids = torch.full((1, count), 299)
    return embed(ids, torch.zeros(1, count, 64), **inputs)[0]


def features(model: Any, inputs: Inputs) -> torch.Tensor:
    if model.config.model_type == "phi4_multimodal":
        return features_of_phi4(model, inputs)
    kind = "audio" if "input_features" in inputs else "image"
    found = getattr(model.base_model, f"get_{kind}_features")(**inputs, return_dict=True).pooler_output
    return found if isinstance(found, torch.Tensor) else torch.cat(list(found))


Case = tuple[Callable[[torch.Tensor], Inputs], list[list[list[int]]]]
CASES: Mapping[str, Case] = {
    "lfm2_vl": (lfm2_vl, [[[2, 2]], [[6, 4], [2, 8]], [[16, 16], [2, 30], [14, 2]], [[8, 10]] * 5]),
    "minicpmv4_6": (minicpm, [[[4, 4]], [[8, 4], [4, 12]], [[28, 20], [4, 4], [4, 60]], [[12, 8]] * 4]),
    "phi4_multimodal": (phi4, [[[1, 1]], [[2, 1], [1, 2]], [[3, 4], [2, 2], [1, 5]], [[2, 3]] * 4]),
    "qwen3_asr": (qwen3_asr, [[[1]], [[100]], [[100], [37]], [[930], [400], [200], [8]], [[700], [650]]]),
}


NIGHTLY = ("minicpmv4_6", "qwen3_asr")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in NIGHTLY else name for name in CASES]
)
def test_features_of_any_sizes(tmp_path: Path, name: str) -> None:
    make_inputs, sizes = CASES[name]
    model = make_multimodal("AutoModelForMultimodalLM", name)
    part = VISION_TOWERS[name](model).part()
    program = fxonnx.export(part.module.eval(), kwargs=dict(part.inputs), dynamic_shapes=part.dynamic_shapes)
    program.save(tmp_path / "vision.onnx")
    session = Session(ort.InferenceSession(tmp_path / "vision.onnx"))
    torch.manual_seed(0)
    for each in sizes:
        inputs = make_inputs(torch.tensor(each))
        with torch.no_grad():
            expected = features(model, inputs)
        (found,) = session(inputs).values()
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)
