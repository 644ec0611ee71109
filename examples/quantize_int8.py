"""Dynamic int8 quantization with ONNX Runtime's tools."""

from pathlib import Path

import onnxruntime
import torch
from onnxruntime.quantization import quantize_dynamic
from torch import nn

import fxonnx

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).eval()
x = torch.rand(4, 64)

fxonnx.export(model, (x,), "float.onnx", dynamic_shapes={"input": {0: "batch"}})
quantize_dynamic("float.onnx", "int8.onnx")
print(*(f"{name}: {Path(name).stat().st_size} bytes" for name in ("float.onnx", "int8.onnx")), sep="\n")

session = onnxruntime.InferenceSession("int8.onnx", providers=["CPUExecutionProvider"])
(scores,) = session.run(None, {"input": x.numpy()})
print("largest difference:", (torch.from_numpy(scores) - model(x)).abs().max().item())
