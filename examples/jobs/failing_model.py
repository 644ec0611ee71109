"""A model that does not export: the page about the failure, its hint, and the file after it."""

import torch
from torch import nn

import fxonnx


class Router(nn.Module):
    """Sends its input to the expert with the largest score."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 2), nn.ReLU()), nn.Linear(4, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return [expert(x) for expert in self.experts][int(self.score(x).mean(0).argmax())]


class Stacked(Router):
    """The same with tensor operators: the number of the expert is a value of the graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([expert(x) for expert in self.experts])[self.score(x).mean(0).argmax()]


torch.manual_seed(0)
model, x = Router().eval(), torch.randn(5, 4)
dynamic = {"x": {0: "batch"}}
try:
    fxonnx.export(
        model, (x,), dynamic_shapes=dynamic, diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir="pages")
    )
except fxonnx.CaptureError as error:
    print(error)  # the line, what it depends on, and two ways out
    page = error.report
assert page is not None
assert "failing_model.py" in page.read_text()

# The first way of the hint: a graph for one expert, which says for which inputs it is.
one = fxonnx.export(model, (x,), dynamic_shapes=dynamic, data_dependent="example")
print(*one.record.assumptions, sep="\n")
torch.testing.assert_close(one(x)[0], model(x))

# The better one: no value of a tensor in Python.
stacked = Stacked().eval()
stacked.load_state_dict(model.state_dict())
program = fxonnx.export(stacked, (x,), "router.onnx", dynamic_shapes=dynamic, verify="auto")
for _ in range(20):
    x = torch.randn(7, 4)
    torch.testing.assert_close(program(x)[0], model(x), rtol=1e-4, atol=1e-5)
print("router.onnx follows every expert")
