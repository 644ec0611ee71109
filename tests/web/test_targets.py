"""The targets of onnxruntime-web agree with the installed package, in headless Chromium (``make web``)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import fxonnx.huggingface
from benchmarks.target_kernels import FOLDER, WEB_PROVIDERS, content
from benchmarks.web_kernels import web_kernels
from benchmarks.web_placement import place
from tests.models.torchvision_shim import import_torchvision

from .browser import MODULES, has_modules
from .models import CASES

import_torchvision()

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None or not has_modules(), reason="make web installs onnxruntime-web; needs Chromium"
)
# Operators with different opsets, types and inputs: MatMulNBits has optional inputs of further types.
OPERATORS = {"Attention", "Cast", "GatherBlockQuantized", "GridSample", "MatMulNBits", "MaxPool", "Resize", "Where"}


@pytest.mark.parametrize("target", WEB_PROVIDERS)
def test_the_table_is_that_of_the_installed_package(target: str) -> None:
    stored = json.loads((FOLDER / f"{target}.json").read_text())
    version = json.loads((MODULES / "onnxruntime-web" / "package.json").read_text())["version"]
    if f" {version}," not in stored["source"]:
        pytest.skip(f"the table is of {stored['source']}, installed is {version}")
    asked = content(*web_kernels(WEB_PROVIDERS[target], OPERATORS))["kernels"]
    expected = {
        domain: {name: versions for name, versions in operators.items() if name in OPERATORS}
        for domain, operators in stored["kernels"].items()
    }
    assert asked == expected, f"run python -m benchmarks.target_kernels {target}"


def _resnet() -> tuple[Any, Any]:
    from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor

    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic")
    return ResNetForImageClassification(config).eval(), ViTImageProcessor(size={"height": 32, "width": 32})


def test_check_finds_the_nodes_that_the_cpu_runs(tmp_path: Path) -> None:
    """Index arithmetic stays on the CPU, and nothing is copied from the GPU."""
    paths = []
    for name, make in {
        **{name: CASES[name].make for name in ("text", "image", "generation")},
        "resnet": _resnet,
    }.items():
        model, processor = make()
        exported = fxonnx.huggingface.export(
            model, tmp_path / name, processor=processor, target="onnxruntime-web-webgpu", verify=False
        )
        paths += exported.files
    for path, placement in zip(paths, place(paths, "disabled"), strict=True):
        findings = fxonnx.check(path, "onnxruntime-web-webgpu")
        assert {each.severity for each in findings} <= {"slow"}
        assert sorted(each.node for each in findings) == sorted(name for _, name in placement.on_cpu)
        assert placement.on_gpu
        assert not placement.downloads
