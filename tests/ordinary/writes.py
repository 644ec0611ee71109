"""Assignments to slices, rows, masks and positions; in-place ops; mutated buffers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .harness import T, ids, mask, ordinary

X = T("batch", 5)


@ordinary(X)
def slice_is_number(x):
    y = x.clone()
    y[:, 1:3] = 0
    y[:, -1] = 2.5
    return y


@ordinary(X)
def row_is_number(x):
    y = x.clone()
    y[0] = 3
    y[-1, 0] = -1
    return y


@ordinary(X)
def row_is_weight(self, x):
    y = x.clone()
    y[0] = self.scale
    y[:, 0] = self.offset[1]
    return y


@ordinary(X)
def element_is_literal(x):
    y = x * 1
    y[0, 1] = torch.tensor(7.0)
    y[:, 2:4] = torch.tensor([1.0, 2.0])
    return y


@ordinary(X)
def mask_is_number(x):
    y = x.clone()
    y[y > 0] = -1.0
    return y


@ordinary(X)
def mask_is_tensor(x):
    y = x.clone()
    y[y.abs() > 1] = torch.tensor(9.0)
    y[torch.isnan(y)] = 0
    return y


@ordinary(X, mask("batch"))
def rows_by_mask(x, keep):
    y = x.clone()
    y[~keep] = 0.0
    return y


@ordinary(X)
def every_second(x):
    y = torch.zeros_like(x)
    y[:, 0::2] = x[:, 0::2].sin()
    y[:, 1::2] = x[:, 1::2].cos()
    return y


@ordinary(X)
def positions_in_a_list(x):
    y = x.clone()
    y[:, [0, 3]] = 1.0
    y[:, torch.tensor([1, 2])] = x[:, [2, 1]]
    return y


@ordinary(X, ids("batch", high=5))
def one_position_per_row(x, i):
    y = x.clone()
    y[torch.arange(x.shape[0]), i] = 10.0
    return y


@ordinary(X)
def row_plus_literal(x):
    y = x * 1
    y[0] += torch.tensor(2.0)
    y[:, 1] *= 3
    y[:, 2:] -= 0.5
    return y


@ordinary(X)
def zeros_filled_by_columns(x):
    y = torch.zeros(x.shape[0], 5)
    y[:, 2] = x[:, 0]
    y[:, 3:] = 7
    y[:, :2] = x[:, 3:]
    return y


@ordinary(T("batch", "time", 5))
def zeros_filled_in_a_loop(x):
    y = x.new_zeros(x.shape[0], x.shape[1], 10)
    for k in range(5):
        y[..., 2 * k] = x[..., k]
        y[..., 2 * k + 1] = -x[..., k] * k
    return y


@ordinary(T("batch", "time", 5))
def first_token_replaced(self, x):
    y = x.clone()
    y[:, 0] = self.scale
    y[:, 1:, 0] = 0.0
    return y


@ordinary(ids("batch", "time"))
def tokens_shifted_right(tokens):
    shifted = tokens.new_zeros(tokens.shape)
    shifted[:, 1:] = tokens[:, :-1].clone()
    shifted[:, 0] = 1
    shifted.masked_fill_(shifted == 3, 0)
    return shifted


@ordinary(T("batch", "time", "time"))
def diagonal_is_number(x):
    y = x.clone()
    y.diagonal(dim1=-2, dim2=-1).fill_(0.0)
    return y


@ordinary(X)
def in_place(x):
    y = x.clone()
    y.add_(1).mul_(2).clamp_(-1, 3)
    y.relu_()
    return F.relu(y, inplace=True).sub_(0.5)


@ordinary(X)
def in_place_on_views(x):
    y = x.clone()
    y.view(-1)[1:3].fill_(2.0)
    y.t()[0].neg_()
    y.unsqueeze(1)[:, 0, 4:].zero_()
    return y


@ordinary(X)
def copied_into_a_part(x):
    y = torch.full((x.shape[0], 8), -1.0)
    y[:, 2:7].copy_(x)
    return y


@ordinary(T("batch", 1, "height", "width"))
def pasted_into_a_canvas(x):
    canvas = torch.zeros(x.shape[0], 1, x.shape[2] + 4, x.shape[3] + 2)
    canvas[:, :, 2:-2, 1:-1] = x
    return canvas


@ordinary(X, X)
def where_as_assignment(x, y):
    out = torch.where(x > y, x, y)
    out[(x > 0) & (y > 0)] *= 2
    return out


@ordinary(X)
def masked_scatter_and_fill(x):
    return (
        x.masked_fill(x < -1, float("-inf")),
        x.masked_fill(x > 1, torch.tensor(1.0)),
        x.index_fill(1, torch.tensor([0, 2]), 5),
    )


@ordinary(X, X)
def index_add_and_copy(x, y):
    i = torch.tensor([0, 2, 4, 1, 3])
    return (
        x.index_add(1, i, y),
        x.index_copy(1, i, y),
        x.index_put((torch.tensor([0]),), y[0]),
        torch.zeros(5).index_add_(0, i, x[0]),
    )


@ordinary(X)
def scatter_into_zeros(x):
    i = torch.tensor([[0, 2, 1, 0, 3]]).expand(x.shape[0], -1)
    zeros = torch.zeros_like(x)
    return (
        zeros.scatter(1, i, x),
        zeros.scatter_add(1, i, x),
        zeros.scatter(1, i, 1.0),
        zeros.scatter_reduce(1, i, x, "amax"),
    )


@ordinary(ids("batch", high=5))
def one_hot_by_scatter(i):
    return torch.zeros(i.shape[0], 5).scatter_(1, i.unsqueeze(1), 1.0)


@ordinary(X)
def write_to_the_input(x):
    x += 1
    x[:, 0] = 0
    return x * 2


@ordinary(X)
def list_of_tensors_changed(x):
    parts = [x, x * 2]
    parts[0] = parts[0] + 1
    parts.append(parts[0] - parts[1])
    parts.extend(p.neg() for p in parts[:2])
    return torch.stack(parts[::-1], 1)


@ordinary(X)
class RunningMean(nn.Module):
    """A buffer that forward mutates."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean, self.calls


@ordinary(X)
class BufferRowReplaced(nn.Module):
    """A ring buffer, written by slices."""

    def __init__(self):
        super().__init__()
        self.register_buffer("history", torch.arange(80.0).reshape(16, 5))

    def forward(self, x):
        self.history[:-1] = self.history[1:].clone()
        self.history[-1] = x.mean(0)
        return self.history.mean(0) + x


@ordinary(T(1, 1, 4), sizes={})
class KeyCache(nn.Module):
    """A static cache at a fixed position."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 16, 4), persistent=False)

    def forward(self, k):
        self.keys[:, 3:4] = k
        return self.keys @ k.transpose(1, 2)


@ordinary(X)
class Quantizer(nn.Module):
    """Codes of a table, straight-through."""

    def __init__(self):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(16, 5))

    def forward(self, x):
        distance = (x**2).sum(1, keepdim=True) - 2 * x @ self.codes.t() + (self.codes**2).sum(1)
        i = distance.argmin(1)
        q = self.codes[i]
        return x + (q - x).detach(), i
