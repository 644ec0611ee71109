"""The notebooks of the gallery run, and print the outputs that they store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .notebooks import NOTEBOOKS, load, make_torchvision_run, run

GALLERY = Path(__file__).parent.parent / "docs" / "gallery"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_its_outputs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_torchvision_run()
    monkeypatch.chdir(tmp_path)
    notebook = load(path)
    stored = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert run(notebook, tmp_path) == stored, "if that is meant: python -m tests.notebooks"
    assert any(stored)
    assert path.stat().st_size < 100_000


def test_the_page_lists_every_notebook() -> None:
    rows = re.findall(r"^\| \[[^]]+\]\(([\w-]+\.ipynb)\) \|", (GALLERY / "index.md").read_text(), flags=re.MULTILINE)
    assert sorted(rows) == [path.name for path in NOTEBOOKS]
