"""Wheel and sdist: their contents, and an export with the installed wheel outside of the repository."""

from __future__ import annotations

import email
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import fxonnx

from .release import build, installed_export

ROOT = Path(__file__).parent.parent
FOLDERS = ("exporter", "translations", "tests", "benchmarks", "docs", "examples", "recipe", ".ci", ".github")
NOT_COPIED = ("__pycache__", "*.egg-info", "node_modules", "*.onnx", "*.onnx.data")
NAME = f"fxonnx-{fxonnx.__version__}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the wheel and the sdist, built from a copy: setuptools writes into the source tree."""
    copy = tmp_path_factory.mktemp("source")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns(*NOT_COPIED))
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, copy)
    # Files of a checkout that the sdist must not have.
    (copy / "tests" / "web" / "node_modules").mkdir()
    for left in ("tests/web/node_modules/index.js", "tests/model.onnx", "benchmarks/results/local.json"):
        (copy / left).touch()
    build(copy, copy / "dist")
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
    assert_links_are_absolute(metadata)
    assert 'Requires-Dist: typer; extra == "cli"' in metadata
    for version in ("3.10", "3.11", "3.12", "3.13"):
        assert f"Classifier: Programming Language :: Python :: {version}\n" in metadata
    assert "Classifier: Typing :: Typed\n" in metadata
    assert "Keywords: onnx,pytorch," in metadata
    assert "Author: The fxonnx contributors\n" in metadata
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


def assert_links_are_absolute(metadata: str) -> None:
    """The description is README.md, and its links are files of this version in the repository."""
    urls = dict(re.findall(r"^Project-URL: (\w+), (\S+)$", metadata, re.MULTILINE))
    assert {"Repository", "Documentation", "Changelog"} <= set(urls)
    tag = f"v{fxonnx.__version__}"
    found = re.findall(r"(!?)\[[^\]]+\]\(([^)]+)\)", metadata.partition("\n\n")[2])
    assert len(found) > 20
    for mark, link in found:
        kind, path = re.fullmatch(rf"{re.escape(urls['Repository'])}/(raw|blob)/{re.escape(tag)}/(.+)", link).groups()
        assert kind == ("raw" if mark else "blob")
        assert (ROOT / path.partition("#")[0]).is_file()
    relative = re.sub(rf"{re.escape(urls['Repository'])}/(raw|blob)/{re.escape(tag)}/", "", metadata)
    assert (ROOT / "README.md").read_text().strip() in relative


def test_the_sdist_has_the_suite_with_the_files_that_it_reads(built: Path, tmp_path: Path) -> None:
    with tarfile.open(built / f"{NAME}.tar.gz") as sdist:
        names = {name.removeprefix(f"{NAME}/") for name in sdist.getnames()}
        sdist.extractall(tmp_path)
    copy = built.parent
    left = (
        "build",
        "dist",
        "exporter/fxonnx.egg-info",
        "tests/web/node_modules",
        "tests/model.onnx",
        "examples/web/models",
    )
    files = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    files = {name for name in files if not name.startswith(left) and ".egg-info" not in name}
    results = {name for name in files if Path(name).match("benchmarks/results/*.json")}
    kept = {f"benchmarks/results/{name}.json" for name in ("language_model_types", "operator_nodes_peer")}
    assert files - results | kept <= names
    assert not (results - kept) & names
    assert not any("node_modules" in name or name.endswith((".onnx", ".pyc")) for name in names)
    # These import others of the suite and the benchmarks.
    tests = ("tests/targets/test_profiles.py", "tests/test_hostile_files.py")
    root = tmp_path / NAME
    environment = os.environ | {"PYTHONPATH": f"{root / 'exporter'}{os.pathsep}{root / 'translations'}"}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_recipe_for_conda_is_that_of_the_wheel(built: Path) -> None:
    """Name, version, Python, dependencies with those of the command, and the command itself."""
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as wheel:
        folder = f"{NAME}.dist-info"
        found = email.message_from_bytes(wheel.read(f"{folder}/METADATA"))
        commands = re.findall(r"^(\S+ = \S+)$", wheel.read(f"{folder}/entry_points.txt").decode(), re.MULTILINE)
    recipe = yaml.safe_load((ROOT / "recipe/recipe.yaml").read_text())
    assert recipe["package"]["name"] == found["Name"]
    assert recipe["context"]["version"] == found["Version"]
    assert f">={recipe['context']['python_min']}" == found["Requires-Python"]
    requirements = [Requirement(text) for text in found.get_all("Requires-Dist", [])]
    conda_names = {"torch": "pytorch"}
    needed = [
        f"{conda_names.get(one.name, one.name)} {one.specifier}".strip()
        for one in requirements
        if one.marker is None or one.marker.evaluate({"extra": "cli"})
    ]
    assert recipe["requirements"]["run"] == ["python >=${{ python_min }}", *needed]
    builds = Requirement(re.findall(r'^requires = \["(.+)"\]$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0])
    assert f"{builds.name} {builds.specifier}" in recipe["requirements"]["host"]
    assert recipe["build"]["python"]["entry_points"] == commands
    assert recipe["about"]["summary"] == found["Summary"]
    assert recipe["about"]["license"] == found["License-Expression"]
    packages = {name.split("/")[0] for name in zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl").namelist()}
    assert {*recipe["tests"][0]["python"]["imports"]} == packages - {folder}


def test_the_citation_has_the_version_and_the_license_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {fxonnx.__version__}\n" in citation
    assert "license: MIT\n" in citation


def test_the_installed_wheel_exports(built: Path, tmp_path: Path) -> None:
    assert installed_export(tmp_path, str(built / f"{NAME}-py3-none-any.whl")) == f"{fxonnx.__version__} 1"
    assert (tmp_path / "model.onnx").is_file()
    site = tmp_path / "site"
    command = [sys.executable, str(site / "bin" / "fxonnx"), "--version"]
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"fxonnx {fxonnx.__version__}"


@pytest.mark.nightly
@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_command_of_a_page_works_in_the_unpacked_sdist(page: str, built: Path, tmp_path: Path) -> None:
    with tarfile.open(built / f"{NAME}.tar.gz") as sdist:
        sdist.extractall(tmp_path)
    unpacked = tmp_path / NAME
    block = re.findall(r"^```bash\n(.*?)^```", (unpacked / page).read_text(), re.MULTILINE | re.DOTALL)[0]
    command = shlex.split(block.splitlines()[0], comments=True)
    assert command[:4] == ["python", "-m", "pip", "install"]
    assert installed_export(tmp_path, *command[4:], cwd=unpacked) == f"{fxonnx.__version__} 1"
