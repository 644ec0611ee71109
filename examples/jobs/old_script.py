"""A script of 2021 for torch.onnx, which nobody has changed; run_old_script.py runs it with fxonnx."""

import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)

    def forward(self, x):
        return self.upsample(self.features(x))


model = Net()
model.eval()
dummy_input = torch.randn(1, 1, 8, 8, requires_grad=True)
torch.onnx.export(
    model,
    dummy_input,
    "net.onnx",
    export_params=True,
    opset_version=11,
    do_constant_folding=True,
    input_names=["input"],
    output_names=["output"],
    dynamic_axes={"input": {0: "batch_size"}, "output": {0: "batch_size"}},
    verbose=False,
)

onnx.checker.check_model(onnx.load("net.onnx"))
session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
x = torch.randn(5, 1, 8, 8)
found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
np.testing.assert_allclose(model(x).detach().numpy(), found[0], rtol=1e-3, atol=1e-5)
print("Exported model has been tested with ONNXRuntime, and the result looks good!")
