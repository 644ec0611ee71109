"""An operator of one's own, from the first error to the file: each hint is the next step."""

from typing import Any

import torch
from torch import nn

import fxonnx


@torch.library.custom_op("jobs::leak", mutates_args=())
def leak(x: torch.Tensor, slope: float) -> torch.Tensor:
    return torch.where(x < 0, x * slope, x)


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return leak(x, 0.1) + 1


model, x = Model().eval(), torch.randn(3, 4)
options: dict[str, Any] = {"dynamic_shapes": {"x": {0: "batch"}}}

try:
    fxonnx.export(model, (x,), **options)
except fxonnx.CaptureError as error:
    print(error.hint)  # register one that returns an empty tensor ...: torch.library.register_fake("jobs::leak", ...)
torch.library.register_fake("jobs::leak", lambda x, slope: torch.empty_like(x))

try:
    fxonnx.export(model, (x,), **options)
except fxonnx.UnsupportedOperatorError as error:
    print(error.hint)  # pass a translation of your own: export(..., custom_translation_table={...})


def my_function(op: Any, x: Any, slope: float) -> Any:
    return op.LeakyRelu(x, alpha=slope)


options["custom_translation_table"] = {torch.ops.jobs.leak.default: my_function}
program = fxonnx.export(model, (x,), "leak.onnx", verify="auto", **options)
print([node.op_type for node in program.model.graph])
assert [node.op_type for node in program.model.graph] == ["LeakyRelu", "Add"]
