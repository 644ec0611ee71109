"""Static int8 quantization with calibration, and the difference of each layer."""

from pathlib import Path

import torch
from torch import nn

import fxonnx
from fxonnx import QuantizeConfig

model = nn.Sequential(
    *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU()),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 8)),
).eval()
images = torch.rand(64, 3, 16, 16)
loader = torch.utils.data.DataLoader([(image, 0) for image in images], batch_size=16)
options = {"dynamic_shapes": ({0: "batch"},), "target": "onnxruntime"}

fxonnx.export(model, (images[:4],), "float.onnx", **options)
program = fxonnx.export(
    model, (images[:4],), "int8.onnx", **options, quantize=QuantizeConfig("int8", calibration=loader), verify=True
)
print(*(f"{name}: {Path(name).stat().st_size} bytes" for name in ("float.onnx", "int8.onnx")), sep="\n")

print(program.quantization.report())
(scores,) = program(images)
print("largest difference:", (scores - model(images)).abs().max().item())
