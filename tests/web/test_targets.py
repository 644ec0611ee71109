"""The targets of onnxruntime-web agree with the installed package, in headless Chromium (``make web``)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxonnx.huggingface
from benchmarks.target_kernels import FOLDER, WEB_PROVIDERS, content
from benchmarks.web_kernels import web_kernels
from benchmarks.web_placement import place
from tests.functions import Function
from tests.models.torchvision_shim import import_torchvision

from .browser import MODULES, has_modules, serve
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


def _resized(**options: Any) -> nn.Module:
    return Function(lambda x: nn.functional.interpolate(x, mode="bilinear", **options))


# A module with the shape of its input. Kernels exist for all of them; the last three are loaded and fail in a call.
FORMS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "conv3d": (nn.Conv3d(2, 3, 3), (1, 2, 5, 5, 5)),
    "transposed_conv": (nn.ConvTranspose2d(4, 4, 3, stride=2, output_padding=1, groups=2), (1, 4, 5, 5)),
    "max_pool": (nn.MaxPool2d(2, dilation=2, ceil_mode=True), (1, 2, 7, 7)),
    "resize": (_resized(size=(7, 5), align_corners=True), (1, 2, 4, 4)),
    "grid": (
        Function(lambda x: nn.functional.grid_sample(x, x[:, :1, :, :2].reshape(1, 4, 1, 2), align_corners=False)),
        (1, 2, 4, 4),
    ),
    "lstm": (nn.LSTM(3, 4, bidirectional=True, num_layers=2), (5, 2, 3)),
    "attention": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
    "scatter": (Function(lambda x: x.scatter_reduce(0, torch.tensor([[0, 1, 0]]), torch.ones(1, 3), "amax")), (2, 3)),
    "fft": (Function(lambda x: torch.view_as_real(torch.fft.rfft(x))), (2, 8)),
    "transposed_conv3d": (nn.ConvTranspose3d(2, 3, 3), (1, 2, 3, 3, 3)),
    "max_pool_indices": (nn.MaxPool2d(2, return_indices=True), (1, 2, 6, 6)),
    "resize_antialias": (_resized(size=(2, 3), antialias=True), (1, 2, 8, 8)),
}


def test_check_finds_the_forms_that_fail(tmp_path: Path) -> None:
    """The other ones have the results of eager torch."""
    models, expected, fails = {}, {}, set()
    for name, (module, shape) in FORMS.items():
        x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        program = fxonnx.export(module.eval(), (x,), tmp_path / f"{name}.onnx", target="onnxruntime-web-webgpu")
        models[name] = {"data": x.flatten().tolist(), "dims": list(shape)}
        result = module(x)
        expected[name] = (result[0] if isinstance(result, tuple) else result).detach()
        if any(finding.severity == "fails" for finding in fxonnx.check(program.model, "onnxruntime-web-webgpu")):
            fails.add(name)
    (tmp_path / "models.json").write_text(json.dumps(models))
    with serve({"/models/": tmp_path, "/": Path(__file__).parent}) as site:
        found = site.open("run_models.html", webgpu=True)
    assert {name for name, each in found.items() if "error" in each} == fails
    for name in found.keys() - fails:
        torch.testing.assert_close(
            torch.tensor(found[name]["data"]).reshape(found[name]["dims"]), expected[name], atol=1e-4, rtol=1e-3
        )
