"""Run a script written for torch.onnx: install() replaces torch.onnx.export."""

import torch
from torch import nn

import fxonnx

model = nn.Linear(4, 2).eval()

with fxonnx.installed():  # or fxonnx.install() once, at the top of the program
    program = torch.onnx.export(
        model,
        (torch.rand(3, 4),),
        "linear.onnx",
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {0: "batch"}},
        dynamo=False,
    )

print(type(program), program.model.graph.inputs[0])
