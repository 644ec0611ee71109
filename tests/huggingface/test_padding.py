"""Models that pad their inputs where necessary: one file for sizes that need a padding and for sizes that do not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import fxonnx.huggingface
from fxonnx._transformers.parts import padding_any_size

from .small_models import main_task, make_model

SIZES = {"longformer": [(2, 20), (1, 16), (3, 11)], "maskformer": [(2, 64, 64), (1, 70, 90), (1, 128, 96)]}


def call(model: Any, model_type: str, size: tuple[int, ...]) -> Any:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        if model_type == "longformer":
            ids = torch.randint(3, 120, size, generator=generator)
            return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        batch, *sides = size
        pixels = torch.randn(batch, 3, *sides, generator=generator)
        mask = torch.ones(batch, *sides, dtype=torch.int64)
        return model(pixel_values=pixels, pixel_mask=mask).masks_queries_logits


@pytest.mark.parametrize("model_type", SIZES)
def test_sizes_with_and_without_padding(tmp_path: Path, model_type: str) -> None:
    task = main_task(model_type)
    model = make_model(model_type, task)
    if model_type == "longformer":  # its capture takes some seconds for each layer
        model.longformer.encoder.layer = model.longformer.encoder.layer[:1]
    exported = fxonnx.huggingface.export(model, tmp_path, task=task.name, verify=False)
    assert exported.limits == {"model.onnx": ()}
    loaded = fxonnx.huggingface.load(tmp_path)
    for size in SIZES[model_type]:
        torch.testing.assert_close(call(loaded, model_type, size), call(model, model_type, size), atol=1e-4, rtol=1e-3)


def test_classes_are_as_before() -> None:
    model = make_model("longformer", main_task("longformer"))
    kind = type(model.longformer)
    before = kind.__dict__["_pad_to_window_size"]
    with padding_any_size(model):
        assert kind.__dict__["_pad_to_window_size"] is not before
    assert kind.__dict__["_pad_to_window_size"] is before


def test_classes_are_as_before_overlapping_exports() -> None:
    model = make_model("longformer", main_task("longformer"))
    kind = type(model.longformer)
    before = kind.__dict__["_pad_to_window_size"]
    has_entered, may_leave = threading.Event(), threading.Event()

    def export() -> None:
        with padding_any_size(model):
            has_entered.set()
            may_leave.wait(10)

    other = threading.Thread(target=export)
    with padding_any_size(model):
        other.start()
        has_entered.wait(0.5)  # it waits for this context
    may_leave.set()
    other.join()
    assert kind.__dict__["_pad_to_window_size"] is before
