"""Running the file of a program instead of the program in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnxruntime

import fxonnx

__all__ = ["run_from_file"]


def run_from_file(program: fxonnx.ONNXProgram) -> None:
    """Saves a program and loads the file in ONNX Runtime; calls of the program run that session from now on.

    Raises:
        RuntimeSessionError: If ONNX Runtime cannot load the file.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        program.save(path)
        # ONNX Runtime keeps a model without external data in memory: the file is needed only here.
        program.initialize_inference_session(lambda _: _session(path))


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
