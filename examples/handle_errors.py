"""Handle errors: each has a code, a message and usually a hint."""

import torch
from torch import nn

import fxonnx

model = nn.Linear(4, 2).eval()
x = torch.rand(3, 4)

try:
    fxonnx.export(model, (x,), dynamic_shapes={"inptu": {0: "batch"}})
except fxonnx.ArgumentError as error:
    print(error)  # error[FX001]: ... did you mean 'input'?


class Packed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.hash_tensor(x)


try:
    fxonnx.export(Packed().eval(), (x,))
except fxonnx.UnsupportedOperatorError as error:
    print(error.code, [operator.name for operator in error.operators])

try:
    fxonnx.export(model, (x,), "no_such_directory/model.onnx")
except fxonnx.ExportError as error:  # the base class of all of them
    print(type(error).__name__, error.hint)
