"""Replace the translation of a built-in operator, here by an operator of ONNX Runtime's own domain."""

from typing import Any

import torch
from torch import nn

import fxonnx


def silu_as_quick_gelu(g: Any, x: Any) -> Any:
    """QuickGelu with alpha=1 is SiLU; g.op is the interface of torch.onnx's symbolic functions."""
    return g.op("com.microsoft::QuickGelu", x, alpha_f=1.0)


model = nn.Sequential(nn.Linear(8, 8), nn.SiLU()).eval()
x = torch.randn(2, 8)

standard = fxonnx.export(model, (x,))
table = {torch.ops.aten.silu.default: silu_as_quick_gelu}
fused = fxonnx.export(model, (x,), custom_translation_table=table, verify=True)
print([node.op_type for node in standard.model.graph])
print([node.op_type for node in fused.model.graph])
