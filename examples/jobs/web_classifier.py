"""A classifier for the web: exported for onnxruntime-web, which runs it in node as in a browser.

npm install --ignore-scripts onnxruntime-web, in the current directory
"""

import json
import subprocess
from pathlib import Path

import torch
from torch import nn

import fxonnx

layers = (nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
model = nn.Sequential(*layers, nn.Linear(8, 4), nn.Softmax(-1)).eval()

program = fxonnx.export(
    model,
    (torch.rand(2, 3, 32, 32),),
    "classifier.onnx",
    input_names=["images"],
    output_names=["scores"],
    dynamic_shapes=({0: "batch", 2: "height", 3: "width"},),
    target="onnxruntime-web",
    verify="auto",
)
print("not in onnxruntime-web:", fxonnx.check("classifier.onnx", "onnxruntime-web"))

images = torch.rand(1, 3, 48, 40)
Path("images.json").write_text(json.dumps({"dims": [*images.shape], "data": images.flatten().tolist()}))
command = ["node", str(Path(__file__).parent / "classify.mjs"), "classifier.onnx", "images.json"]
answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
torch.testing.assert_close(torch.tensor([json.loads(answer)]), model(images).detach(), rtol=1e-4, atol=1e-5)
print("scores in node:", answer.strip())
