"""The README is short, and its scripts and those of the tour run unmodified."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from .genai.small_models import make_model, make_tokenizer
from .models.torchvision_shim import import_torchvision

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


@pytest.mark.parametrize(("page", "count"), [("README.md", 1), ("docs/tour.md", 6)])
def test_the_scripts_run(page: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_torchvision()
    scripts = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert len(scripts) == count
    monkeypatch.chdir(tmp_path)
    make_model("llama").save_pretrained("checkpoint")
    make_tokenizer().save_pretrained("checkpoint")
    exec(compile("\n".join(scripts), page, "exec"), {"__name__": "__main__"})
    for path in tmp_path.glob("m*.onnx"):
        onnx.checker.check_model(path, full_check=True)
    assert (tmp_path / ("model.onnx" if count == 1 else "mlp.onnx")).exists()


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_every_folder_of_the_map_exists() -> None:
    rows = re.findall(r"^\| (`[^|]+/`) \|", README.read_text(), flags=re.MULTILINE)
    folders = re.findall(r"`([^`]+/)`", " ".join(rows))
    assert len(folders) >= 9
    assert not [folder for folder in folders if not (ROOT / folder).is_dir()]
