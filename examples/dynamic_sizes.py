"""Several dynamic dims, and the constraints under which the exported model is equivalent."""

import warnings

import torch
from torch import nn

import fxonnx


class Pairs(nn.Module):
    """Adds rows of one sequence to the rows of another that is one longer."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 64:
            raise ValueError("at most 64 rows")
        return x + y[:, 1:]


args = (torch.rand(2, 5, 3), torch.rand(2, 6, 3))
shapes = {"x": {0: "batch", 1: "rows"}, "y": {0: "batch", 1: "other_rows"}}

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    program = fxonnx.export(Pairs().eval(), args, dynamic_shapes=shapes)
print(caught[-1].message)  # the constraints, each with the line of the model that needs it

for constraint in program.record.constraints:
    print(constraint.text)

try:
    program(torch.rand(2, 5, 3), torch.rand(2, 9, 3))
except fxonnx.ArgumentError as error:
    print(error)  # sizes that violate a constraint are an error, not a wrong result
