"""An old script for torch.onnx, unchanged, through fxonnx.install()."""

import runpy
from pathlib import Path

import onnx

import fxonnx

fxonnx.install()
try:
    runpy.run_path(str(Path(__file__).parent / "old_script.py"), run_name="__main__")
finally:
    fxonnx.uninstall()

model = onnx.load("net.onnx")
print("net.onnx: opset", model.opset_import[0].version, [value.name for value in model.graph.output])
