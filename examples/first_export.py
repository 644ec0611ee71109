"""Export a model to a file and run the file in ONNX Runtime."""

import onnxruntime
import torch
from torch import nn

import fxonnx

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
x = torch.rand(4, 8)

program = fxonnx.export(model, (x,), "mlp.onnx", input_names=["features"], output_names=["scores"])
print(program)

session = onnxruntime.InferenceSession("mlp.onnx", providers=["CPUExecutionProvider"])
(scores,) = session.run(["scores"], {"features": x.numpy()})
torch.testing.assert_close(torch.from_numpy(scores), model(x))
