"""Files are byte-identical in every export and every process."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import pytest
import torch
from torch import nn

import fxonnx
from tests.capture.test_constraints import either, model


def _layers() -> fxonnx.ONNXProgram:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)).eval()
    return fxonnx.export(layers, (torch.ones(2, 3, 4, 4),), dynamic_shapes=({0: "n"},))


def _quantized() -> fxonnx.ONNXProgram:
    layers = nn.Sequential(nn.Linear(40, 33), nn.Linear(33, 33)).eval()
    config = fxonnx.QuantizeConfig(symmetric=False, include=["0", "1"])
    return fxonnx.export(layers, (torch.ones(2, 3, 40),), quantize=config)


def _functions() -> fxonnx.ONNXProgram:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    options = fxonnx.ExportOptions(functions="repeated")
    return fxonnx.export(encoder, (torch.ones(2, 7, 16),), dynamic_shapes=({0: "n"},), options=options)


def _constraints() -> fxonnx.ONNXProgram:
    def branches(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = either(x) * 2 if x.shape[1] != 7 and x.shape[0] * x.shape[1] > 4 else x
        return result

    return fxonnx.export(model(branches), (torch.rand(5, 3),), dynamic_shapes=({0: "n", 1: "m"},))


def _network(name: str) -> Callable[[], fxonnx.ONNXProgram]:
    from tests.models.test_models import Example
    from tests.models.zoo import CASES

    (case,) = (case for case in CASES if case.name == name)
    return lambda: Example(case, *case.example()).export(dynamic=True)


_NETWORKS = ("mlp", "word_language_model_lstm", "word_language_model_transformer", "swin_t")
_EXPORTS: Mapping[str, Callable[[], fxonnx.ONNXProgram]] = MappingProxyType(
    {"layers": _layers, "quantized": _quantized, "functions": _functions, "constraints": _constraints}
)


def _checksum(export: Callable[[], fxonnx.ONNXProgram]) -> str:
    torch.manual_seed(0)
    with warnings.catch_warnings(), TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        path = Path(folder, "model.onnx")
        export().save(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()


def _checksums(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, _checksum(_EXPORTS.get(name) or _network(name))) for name in names]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([*_EXPORTS], id="layers, quantized, functions, constraints"),
        pytest.param([*_NETWORKS], id="networks", marks=pytest.mark.nightly),
    ],
)
def test_files_are_byte_identical_in_every_export_and_process(names: Sequence[str]) -> None:
    """Twice here, after the exports of other tests, and in a new process, whose sets have another order."""
    script = "import sys, tests.test_determinism as script; script.print_checksums(sys.argv[1:])"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", script, *names], env=environment, stdout=subprocess.PIPE, check=True)
    elsewhere = [tuple(entry) for entry in json.loads(done.stdout.splitlines()[-1])]
    assert sorted({*_checksums([*names, *names]), *elsewhere}) == sorted(elsewhere)
    assert [name for name, _ in elsewhere] == [*names]


def print_checksums(names: Sequence[str]) -> None:
    """The checksums in a process of their own, as one line."""
    json.dump(_checksums(names), sys.stdout)
