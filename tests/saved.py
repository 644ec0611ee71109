"""Tests run saved files instead of models in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnxruntime

import fxonnx

__all__ = ["run_from_file"]


def run_from_file(program: fxonnx.ONNXProgram) -> None:
    """Save a program and load the file in ONNX Runtime; later calls of the program use that session.

    Raises:
        RuntimeSessionError: If ONNX Runtime cannot load the file.
    """
    # The program may create a second session, for its calls in float. It keeps the folder with the file's weights.
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "model.onnx"
    program.save(path)
    content = path.read_bytes() if len(list(path.parent.iterdir())) == 1 else str(path)
    program.initialize_inference_session(lambda _: _session(content, folder))


def _session(content: bytes | str, _folder: object) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    # Otherwise products with quantized weights round the activations.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
