"""Exported directories in transformers.js: under node, and on WebAssembly in headless Chromium (``make web``)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.torchvision_shim import import_torchvision

from .browser import has_modules, serve
from .models import CASES, audio, export_case, image, image_text_tensors, write_cases

import_torchvision()

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not has_modules(),
    reason="make web installs transformers.js, and needs node",
)
SECONDS = 120


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The directory with all models, and for each case its model and processors."""
    root = tmp_path_factory.mktemp("models")
    return root, {name: export_case(name, root) for name in CASES}


@pytest.fixture(scope="module")
def in_node(exported: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    root, _ = exported
    write_cases(root, f"{root}/")
    results = root / "results.json"
    command = ["node", str(HERE / "run_cases.mjs"), str(root / "cases.json"), f"{root}/", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(results.read_text())


@pytest.fixture(scope="module")
def in_chromium(exported: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    if shutil.which("chromium") is None:
        pytest.skip("needs Chromium")
    root, _ = exported
    with serve({"/models/": root, "/": HERE}) as site:
        write_cases(root, f"{site.url}models/")
        return site.open("page.html", seconds=SECONDS)


def expected(name: str, model: Any, processors: Any) -> Any:
    """The result of the pipeline of transformers for a case, with the model in eager torch."""
    from transformers import pipeline

    case = CASES[name]
    if case.task == "translation":  # transformers 5 has no such pipeline
        inputs = processors[0](case.input, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        tokens = model.generate(**inputs, **case.options)
        return processors[0].decode(tokens[0], skip_special_tokens=True)
    if case.task == "feature-extraction":
        inputs = processors[0](case.input, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        with torch.no_grad():
            return model(**inputs).last_hidden_state.mean(1).flatten().tolist()
    if case.task == "automatic-speech-recognition":
        features = processors[0](audio().numpy(), sampling_rate=16000, return_tensors="pt").input_features
        tokens = model.generate(features, **case.options)
        return processors[1].decode(tokens[0], skip_special_tokens=True)
    if case.task == "image-text-to-text":
        return model.generate(**image_text_tensors(name), **case.options)[0].tolist()
    kinds = dict(zip(("image_processor", "tokenizer"), processors, strict=False))
    if len(processors) == 1 and "Tokenizer" in type(processors[0]).__name__:
        kinds = {"tokenizer": processors[0]}
    made = pipeline(case.task, model=model, **kinds)
    options = dict(case.options)
    if case.extra is not None:
        options["candidate_labels"] = case.extra
    return made(case.input if case.input is not None else image(), **options)


@pytest.mark.parametrize("runtime", ["node", "chromium"])
@pytest.mark.parametrize("name", CASES)
def test_pipelines(
    request: pytest.FixtureRequest, exported: tuple[Path, dict[str, Any]], name: str, runtime: str
) -> None:
    """Labels, boxes and tokens as in Python; scores and features to 1e-4."""
    found = request.getfixturevalue(f"in_{runtime}")
    assert "error" not in found, found["error"]
    assert "error" not in found[name], found[name]["error"]
    assert_same(name, found[name], expected(name, *exported[1][name]))


def assert_same(name: str, found: Any, wanted: Any) -> None:
    if name == "features":
        assert found["data"] == pytest.approx(wanted, abs=1e-4)
    elif name in ("llava", "smolvlm"):
        assert found["data"] == wanted
    elif name == "translation":
        assert found[0]["translation_text"] == wanted
    elif name == "speech":
        assert found["text"] == wanted
    elif name == "generation":
        assert found[0]["generated_text"] == wanted[0]["generated_text"]
    else:
        key = "entity" if name == "tokens" else "label"
        assert [each[key] for each in found] == [each[key] for each in wanted]
        assert [each["score"] for each in found] == pytest.approx([each["score"] for each in wanted], abs=1e-4)
