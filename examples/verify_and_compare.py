"""Compare a model with eager torch: its outputs at several sizes, and an intermediate value."""

import torch
from torch import nn

import fxonnx

model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2)).eval()
x = torch.rand(4, 8)
program = fxonnx.export(model, (x,), dynamic_shapes={"input": {0: "batch"}})

for row in program.verify(sizes="auto"):
    print(row.name, row.sizes, row.status, row.max_abs)

# The output of a layer: its node carries the name of the module.
(gelu,) = [node for node in program.model.graph if node.op_type == "Gelu"]
(found,) = program.compute_values([gelu.outputs[0].name], (x,))
torch.testing.assert_close(found, model[:2](x))
