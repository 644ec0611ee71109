"""The forms of a saved model: one file, external data, safetensors, a buffer, without weights."""

import io
from pathlib import Path

import onnx
import torch
from torch import nn

import fxonnx

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
program = fxonnx.export(model, (torch.rand(1, 64),))

program.save("whole.onnx")
program.save("external.onnx", external_data=True)  # weights in external.onnx.data
program.save("tensors.onnx", external_data="safetensors")  # weights in tensors.safetensors
program.save("graph.onnx", include_initializers=False)  # weights are graph inputs

buffer = io.BytesIO()
program.save(buffer)
onnx.load_from_string(buffer.getvalue())

for path in sorted(Path().glob("*.*")):
    print(f"{path.name:20} {path.stat().st_size:6} bytes")
