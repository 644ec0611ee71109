"""The jobs of newcomers in examples/jobs, from the model to the runtime, each with its check."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shutil
from pathlib import Path

import pytest

from .models.torchvision_shim import import_torchvision
from .web.browser import MODULES, has_modules

JOBS = Path(__file__).parent.parent / "examples" / "jobs"
SCRIPTS = {script.name: script for script in sorted(JOBS.glob("*.py")) if script.name != "old_script.py"}
PACKAGES = {
    "bert_in_transformers_js.py": ("transformers", "tokenizers"),
    "draft_tokens.py": ("transformers", "tokenizers", "safetensors", "onnxruntime_genai"),
    "llama_with_lora.py": ("transformers", "tokenizers", "peft", "onnxruntime_genai"),
}


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_job_is_done(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = SCRIPTS[name]
    missing = [package for package in PACKAGES.get(name, ()) if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    if '"node"' in script.read_text():
        if shutil.which("node") is None:
            pytest.skip("needs node")
        if not has_modules():
            pytest.skip("make web installs transformers.js and onnxruntime-web")
        (tmp_path / "node_modules").symlink_to(MODULES)
    if name in PACKAGES:
        import_torchvision()
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")


def test_the_readme_lists_every_job() -> None:
    text = (JOBS.parent / "README.md").read_text()
    assert re.findall(r"^\| \[jobs/(\w+\.py)\]", text, flags=re.MULTILINE) == list(SCRIPTS)
