"""A model that updates its buffers: the state becomes an input and an output."""

import torch
from torch import nn

import fxonnx


class RunningMean(nn.Module):
    """Mean of everything seen so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        self.count += 1
        return self.total / self.count


program = fxonnx.export(RunningMean().eval(), (torch.zeros(3),), "mean.onnx", state="io")
for pair in program.interface.states:
    print(pair.input, "->", pair.output)

session = program.stateful_session()
for value in (1.0, 2.0, 6.0):
    (mean,) = session(torch.full((3,), value))
    print(mean.tolist())

session.reset({"count": torch.tensor(0.0), "total": torch.zeros(3)})
