"""Export a model without its weights, then write it with weights from a safetensors file."""

import torch
from safetensors.torch import save_file
from torch import nn

import fxonnx

weights = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).state_dict()
save_file(weights, "checkpoint.safetensors")

with torch.device("meta"):  # no memory for the weights, whatever the size of the model
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
program = fxonnx.export(model.eval(), (torch.rand(2, 16),), dynamic_shapes={"input": {0: "batch"}})

program.save("copy.onnx", weights="checkpoint.safetensors")  # one tensor in memory at a time
program.save("reference.onnx", weights="checkpoint.safetensors", external_data=fxonnx.REFERENCE)  # no copy at all
print(program.weights.initializers)
