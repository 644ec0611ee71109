"""Files with limits are right or fail in onnxruntime-web, in node (``make web``)."""

from __future__ import annotations

import json
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fxonnx
from tests.program.guarded_models import MODELS

from .browser import MODULES

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not (MODULES / "onnxruntime-web").is_dir(),
    reason="make web installs onnxruntime-web; needs node",
)


@pytest.mark.parametrize("opset", [11, 20])
@pytest.mark.parametrize("optimized", [True, False])
def test_files_with_limits_are_right_or_fail(optimized: bool, opset: int, tmp_path: Path) -> None:
    runs, inputs = [], {}
    models = {name: case.make().eval() for name, case in MODELS.items()}
    for name, case in MODELS.items():
        inputs[name] = [torch.rand(shape) for shape in (case.shape, *case.others)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*cannot be exported for all requested sizes")
            fxonnx.export(
                models[name],
                (inputs[name][0],),
                tmp_path / f"{name}.onnx",
                dynamic_shapes=(dict(case.dims),),
                opset_version=opset,
            )
        given = [{"dims": list(x.shape), "data": x.flatten().tolist()} for x in inputs[name]]
        runs.append({"path": str(tmp_path / f"{name}.onnx"), "optimized": optimized, "inputs": given})
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    script = Path(__file__).with_name("run_files.mjs")
    command = ["node", str(script), str(tmp_path / "runs.json"), str(tmp_path / "results.json")]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    answers: list[list[Any]] = json.loads((tmp_path / "results.json").read_text())
    for (name, case), found in zip(MODELS.items(), answers, strict=True):
        accepted = 0
        for x, answer in zip(inputs[name], found, strict=True):
            if isinstance(answer, str):
                assert x is not inputs[name][0], answer
                continue
            with torch.no_grad():
                expected = models[name](x)
            for actual, one in zip(answer, expected if isinstance(expected, tuple) else (expected,), strict=True):
                wanted = np.asarray(one).reshape(-1)
                np.testing.assert_allclose(
                    np.asarray(actual), wanted, rtol=1e-4, atol=1e-4, err_msg=f"{name} {x.shape}"
                )
            accepted += 1
        assert case.right <= accepted < 1 + len(case.others)
