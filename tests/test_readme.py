"""The scripts of the README run unmodified."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from .genai.small_models import make_model, make_tokenizer
from .models.torchvision_shim import import_torchvision

README = Path(__file__).parent.parent / "README.md"


def test_the_scripts_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_torchvision()
    scripts = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(scripts) == 6
    monkeypatch.chdir(tmp_path)
    make_model("llama").save_pretrained("checkpoint")
    make_tokenizer().save_pretrained("checkpoint")
    exec(compile("\n".join(scripts), "README.md", "exec"), {"__name__": "__main__"})
    onnx.checker.check_model(tmp_path / "mlp.onnx", full_check=True)


def test_every_folder_of_the_map_exists() -> None:
    folders = re.findall(r"^\| `([^`]+/)` \|", README.read_text(), flags=re.MULTILINE)
    assert len(folders) >= 9
    assert not [folder for folder in folders if not (README.parent / folder).is_dir()]
