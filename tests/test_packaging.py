"""Wheel and sdist: their contents, and an export with the installed wheel outside of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import fxonnx

ROOT = Path(__file__).parent.parent
SOURCES = ("exporter", "translations", "pyproject.toml", "README.md", "LICENSE")
NAME = f"fxonnx-{fxonnx.__version__}"

SCRIPT = """
import sys
import torch
import fxonnx
import fxonnx_translations

assert fxonnx.__file__.startswith(sys.argv[1]) and fxonnx_translations.__file__.startswith(sys.argv[1])
x = torch.rand(2, 4)
program = fxonnx.export(torch.nn.Linear(4, 3).eval(), (x,), "model.onnx", verify=True)
print(fxonnx.__version__, len(program.model.graph))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the wheel and the sdist, built from a copy: setuptools writes into the source tree."""
    copy = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, copy / name)
    # No isolation: the build must not need the network.
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist"], cwd=copy, check=True, capture_output=True
    )
    return copy / "dist"


def test_wheel_and_sdist_contain_typing_marks_license_and_readme(built: Path) -> None:
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as wheel:
        files = set(wheel.namelist())
        metadata = wheel.read(f"{NAME}.dist-info/METADATA").decode()
    assert {"fxonnx/py.typed", "fxonnx_translations/py.typed", f"{NAME}.dist-info/licenses/LICENSE"} <= files
    own = {"fxonnx", "fxonnx_translations", f"{NAME}.dist-info"}
    assert {name.split("/")[0] for name in files} == own
    modules = {
        str(path.relative_to(ROOT / top)) for top in ("exporter", "translations") for path in (ROOT / top).rglob("*.py")
    }
    modules |= {str(path.relative_to(ROOT / "exporter")) for path in (ROOT / "exporter").rglob("*.json")}
    templates = "fxonnx/diagnostics/templates"
    modules |= {f"{templates}/{path.name}" for path in (ROOT / "exporter" / templates).iterdir()}
    assert modules <= files
    dagre = f"{templates}/dagre.LICENSE.txt"
    assert {dagre, f"{NAME}.dist-info/licenses/exporter/{dagre}"} <= files
    assert (ROOT / "README.md").read_text().strip() in metadata
    assert 'Requires-Dist: typer; extra == "cli"' in metadata
    for version in ("3.10", "3.11", "3.12", "3.13"):
        assert f"Classifier: Programming Language :: Python :: {version}\n" in metadata
    assert "Classifier: Typing :: Typed\n" in metadata
    assert "Keywords: onnx,pytorch," in metadata
    assert "Author: The fxonnx contributors\n" in metadata
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in files)
    with tarfile.open(built / f"{NAME}.tar.gz") as sdist:
        names = set(sdist.getnames())
    for name in (
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "exporter/fxonnx/py.typed",
        "translations/fxonnx_translations/py.typed",
    ):
        assert f"{NAME}/{name}" in names


def test_the_citation_has_the_version_and_the_license_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {fxonnx.__version__}\n" in citation
    assert "license: MIT\n" in citation


def test_the_installed_wheel_exports(built: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", str(site)]
    subprocess.run([*install, str(built / f"{NAME}-py3-none-any.whl")], check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": str(site)}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert run(sys.executable, "-c", SCRIPT, str(site)) == f"{fxonnx.__version__} 1"
    assert (tmp_path / "model.onnx").is_file()
    assert run(sys.executable, str(site / "bin" / "fxonnx"), "--version") == f"fxonnx {fxonnx.__version__}"
