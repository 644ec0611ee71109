"""Files are byte-identical in every export and every process.

As a script, it exports the cases that it is given as often as the first argument says, and prints the checksums.
"""

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
from typing import Any

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


def _checksums(times: int, names: Sequence[str]) -> list[Any]:
    return [(name, _checksum(_EXPORTS.get(name) or _network(name))) for _ in range(times) for name in names]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([*_EXPORTS], id="layers, quantized, functions, constraints"),
        pytest.param([*_NETWORKS], id="networks", marks=pytest.mark.nightly),
    ],
)
def test_files_are_byte_identical_in_every_export_and_process(names: Sequence[str]) -> None:
    command = [sys.executable, "-m", "tests.test_determinism"]
    processes = [
        subprocess.Popen(
            [*command, times, *names], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True
        )
        for seed, times in (("1", "2"), ("2", "1"))
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    found = {tuple(entry) for output in outputs for entry in json.loads(output.splitlines()[-1])}
    assert sorted(name for name, _ in found) == sorted(names)


if __name__ == "__main__":
    json.dump(_checksums(int(sys.argv[1]), sys.argv[2:]), sys.stdout)
