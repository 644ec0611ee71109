"""Export with a dynamic batch size and run the model at other sizes."""

import torch
from torch import nn

import fxonnx

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 5)).eval()

# Keys are names of forward's parameters, here of nn.Sequential.forward. verify="auto" compares with eager torch at
# several batch sizes before export returns.
program = fxonnx.export(model, (torch.rand(2, 3, 8, 8),), dynamic_shapes={"input": {0: "batch"}}, verify="auto")
print(program.model.graph.inputs[0])

for batch in (1, 7):
    images = torch.rand(batch, 3, 8, 8)
    torch.testing.assert_close(program(images)[0], model(images))
