"""The page of ``examples/web`` in headless Chromium, on WebAssembly and on WebGPU (``make web``)."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest
import torch

from tests.models.torchvision_shim import import_torchvision

from .browser import MODULES, has_modules, serve

import_torchvision()

HERE = Path(__file__).parent
EXAMPLE = HERE.parent.parent / "examples" / "web"
TEXT = "the quick brown fox"

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None or not has_modules(), reason="make web installs transformers.js; needs Chromium"
)


def test_the_page_shows_the_result_and_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer, BertForSequenceClassification

    monkeypatch.setattr("sys.argv", ["make_model.py", "--output", str(tmp_path)])
    runpy.run_path(str(EXAMPLE / "make_model.py"), run_name="__main__")
    settings = [("wasm", "fp32"), ("wasm", "q8"), ("wasm", "q4"), ("webgpu", "fp32"), ("webgpu", "q4")]
    places = {"/node_modules/": MODULES, "/models/": tmp_path, "/test/": HERE, "/": EXAMPLE}
    with serve(places) as site:
        shown = site.open(f"test/example.html?{quote(json.dumps(settings))}", webgpu=True)
    tokens = AutoTokenizer.from_pretrained(tmp_path / "checkpoint")(TEXT, return_tensors="pt")
    model = BertForSequenceClassification.from_pretrained(tmp_path / "checkpoint").eval()
    with torch.no_grad():
        scores = model(tokens["input_ids"], tokens["attention_mask"]).logits[0].softmax(0)
    expected = {model.config.id2label[index]: score for index, score in enumerate(scores.tolist())}
    for (device, dtype), (status, result) in zip(settings, shown, strict=True):
        assert re.fullmatch(rf"{device}, {dtype}: loaded in \d+ ms, median of 5 runs [\d.]+ ms", status), status
        found = {each["label"]: each["score"] for each in json.loads(result)}
        # The weights of 4 bits are rounded.
        assert found == pytest.approx(expected, abs={"fp32": 1e-4, "q8": 0.05, "q4": 0.3}[dtype]), (device, dtype)
