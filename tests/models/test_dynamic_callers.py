"""Small copies of library models whose guards or constraints torch could not solve."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxonnx
from fxonnx.errors import ArgumentError


class GATConv(nn.Module):
    """torch_geometric's GATConv: attention over the edges of a graph, with self loops replaced by new ones."""

    def __init__(self, inputs: int, outputs: int, heads: int, *, add_self_loops: bool) -> None:
        super().__init__()
        self.heads, self.outputs, self.add_self_loops = heads, outputs, add_self_loops
        self.lin = nn.Linear(inputs, heads * outputs, bias=False)
        self.att_src = nn.Parameter(torch.rand(1, heads, outputs))
        self.att_dst = nn.Parameter(torch.rand(1, heads, outputs))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        nodes = x.size(0)
        x = self.lin(x).view(-1, self.heads, self.outputs)
        alpha_src, alpha_dst = (x * self.att_src).sum(-1), (x * self.att_dst).sum(-1)
        if self.add_self_loops:
            edge_index = edge_index[:, edge_index[0] != edge_index[1]]
            edge_index = torch.cat([edge_index, torch.arange(nodes).repeat(2, 1)], dim=1)
        source, target = edge_index
        alpha = self.edge_update(alpha_src[source], alpha_dst[target], target, nodes)
        messages = alpha.unsqueeze(-1) * x[source]
        index = target.view(-1, 1, 1).expand_as(messages)
        return x.new_zeros(nodes, self.heads, self.outputs).scatter_add_(0, index, messages).flatten(1)

    def edge_update(self, alpha_j: torch.Tensor, alpha_i: torch.Tensor, index: torch.Tensor, nodes: int) -> Any:
        alpha = alpha_j + alpha_i
        if index.numel() == 0:
            return alpha
        alpha = F.leaky_relu(alpha, 0.2)
        expanded = index.view(-1, 1).expand_as(alpha)
        largest = alpha.new_zeros(nodes, self.heads).scatter_reduce_(0, expanded, alpha, "amax", include_self=False)
        alpha = (alpha - largest.index_select(0, index)).exp()
        total = alpha.new_zeros(nodes, self.heads).scatter_add_(0, expanded, alpha) + 1e-16
        return alpha / total.index_select(0, index)


@pytest.mark.parametrize(("add_self_loops", "constraint"), [(False, "edges >= 1"), (True, "nodes >= 1")])
@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
def test_graph_attention(add_self_loops: bool, constraint: str) -> None:
    model = GATConv(4, 3, 2, add_self_loops=add_self_loops).eval()

    def inputs(nodes: int, edges: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(nodes, 4), torch.randint(0, max(nodes, 1), (2, edges))

    program = fxonnx.export(model, inputs(5, 7), dynamic_shapes=({0: "nodes"}, {1: "edges"}))
    assert constraint in [item.text for item in program.record.constraints]
    for sizes in ((5, 7), (9, 3), (1, 1), (3, 20)):
        given = inputs(*sizes)
        torch.testing.assert_close(program(*given)[0], model(*given))
    with pytest.raises(ArgumentError, match=f"exported for {constraint}, got {constraint[:5]} = 0"):
        program(*inputs(*((5, 0) if constraint.startswith("edges") else (0, 0))))


class ADown(nn.Module):
    """YOLOv9's downsampling: half of the channels by convolution, the other half by pooling, after an average of 2x2."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1 = nn.Conv2d(channels // 2, channels // 2, 3, 2, 1)
        self.cv2 = nn.Conv2d(channels // 2, channels // 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.avg_pool2d(x, 2, 1, 0, False, True)
        x1, x2 = x.chunk(2, 1)
        return torch.cat((self.cv1(x1), self.cv2(F.max_pool2d(x2, 3, 2, 1))), 1)


class Neck(nn.Module):
    """A feature pyramid as in YOLOv9t: downsampled maps are upsampled and concatenated with the larger ones."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1))
        self.down = nn.ModuleList(ADown(4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> Any:
        maps = [self.stem(x)]
        for down in self.down:
            maps.append(down(maps[-1]))
        out = maps.pop()
        for larger in reversed(maps):
            out = torch.cat((F.interpolate(out, scale_factor=2.0), larger), 1)
        return out


@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
def test_yolov9_downsampling() -> None:
    model = Neck().eval()
    shapes = {"x": {0: "batch", 2: "height", 3: "width"}}
    program = fxonnx.export(model, (torch.rand(1, 3, 64, 64),), dynamic_shapes=shapes)
    for size in ((1, 3, 64, 64), (2, 3, 96, 128), (3, 3, 32, 64)):
        x = torch.rand(size)
        torch.testing.assert_close(program(x)[0], model(x))
    with pytest.raises(ArgumentError, match="the model was exported for "):
        program(torch.rand(1, 3, 72, 64))
