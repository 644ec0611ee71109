"""Export an ExportedProgram, for example one that was saved by another program."""

import torch
from torch import nn
from torch.export import Dim

import fxonnx

model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).eval()
x = torch.rand(4, 8)
torch.export.save(torch.export.export(model, (x,), dynamic_shapes=({0: Dim("batch")},)), "model.pt2")

# Its dynamic dims are the capture's. On the command line: fxonnx export model.pt2 -o model.onnx --verify
program = fxonnx.export(torch.export.load("model.pt2"), f="model.onnx")
print(program.model.graph.inputs[0])
x = torch.rand(7, 8)
torch.testing.assert_close(program(x)[0], model(x))
