"""Export a custom operator with a translation of its own."""

from typing import Any

import torch
from torch import nn

import fxonnx


@torch.library.custom_op("examples::soft_step", mutates_args=())
def soft_step(x: torch.Tensor, slope: float) -> torch.Tensor:
    """A step that is linear near 0."""
    return (x * slope + 0.5).clamp(0, 1)


@soft_step.register_fake
def _(x: torch.Tensor, slope: float) -> torch.Tensor:
    return torch.empty_like(x)


def translate_soft_step(op: Any, x: Any, slope: float) -> Any:
    """Emit ONNX operators; the parameters are the custom operator's."""
    return op.Clip(op.Add(op.Mul(x, slope), 0.5), 0.0, 1.0)


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.examples.soft_step(x, 0.2)


table = {torch.ops.examples.soft_step.default: translate_soft_step}
program = fxonnx.export(Model().eval(), (torch.randn(3, 4),), custom_translation_table=table, verify=True)
print([node.op_type for node in program.model.graph])
