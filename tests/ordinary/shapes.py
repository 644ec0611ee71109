"""Views, shape arithmetic, indexing, gathering, masks and positions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .harness import T, ids, ordinary

X = T("batch", 5)
SEQUENCE = T("batch", "time", 8)
IMAGE = T("batch", 4, "height", "width")


@ordinary(X)
def views(x):
    return x.view(x.shape[0], 5, 1).permute(2, 0, 1).reshape(-1, 5).unsqueeze(1).expand(-1, 3, -1), x.T, x.flatten()


@ordinary(SEQUENCE)
def heads_split_and_merged(x):
    b, t, d = x.shape
    heads = x.view(b, t, 2, d // 2).transpose(1, 2)
    return heads.transpose(1, 2).contiguous().view(b, t, d), heads.reshape(b * 2, t, -1)


@ordinary(SEQUENCE)
def batch_times_time(x):
    flat = x.reshape(-1, x.size(-1))
    return flat.view(x.size(0), x.size(1), -1), flat.size(0) * 2, x.numel(), flat


@ordinary(SEQUENCE)
def flattening(x):
    return (
        x.flatten(1),
        x.flatten(0, 1),
        torch.flatten(x),
        x.flatten(0, 1).unflatten(0, (x.shape[0], -1)),
        x.unflatten(-1, (2, 4)),
    )


@ordinary(T("batch", 1, 5, 1))
def squeezing(x):
    return x.squeeze(1).squeeze(-1), x.squeeze((1, 3)), x[:, 0, :, 0][..., None], x.squeeze(-1)


@ordinary(SEQUENCE)
def sizes_as_numbers(x):
    n, t = x.shape[:2]
    return x / n + torch.arange(t).unsqueeze(1) * (t // 2 + 1), x * math.sqrt(x.shape[-1]), x.sum(1) / t


@ordinary(SEQUENCE)
def sizes_as_tensors(x):
    n = torch.tensor(x.shape[1])
    return x / n, torch.tensor([x.shape[0], x.shape[1]]), x.shape[1] - 1, torch.full((1,), x.shape[0]), x * (n > 3)


@ordinary(SEQUENCE)
def last_and_first(x):
    return x[:, -1], x[:, 0], x[:, -1:], x[-1], x[..., 0], x[:, :1] - x[:, -1:]


@ordinary(SEQUENCE)
def differences(x):
    return x[:, 1:] - x[:, :-1], torch.diff(x, dim=1), x[:, 1:].sum(1), F.pad(x, (0, 0, 1, 0))[:, :-1]


@ordinary(SEQUENCE, constrained={"time >= 2": ({"time": 1},)})
def mean_of_the_others(x):
    return x[:, 1:].mean(1)


@ordinary(SEQUENCE)
def slices_with_steps(x):
    return x[:, ::2], x[..., 1::3], x[:, :100], x[:, -3:], x[..., -3:-1], x[..., :-1]


@ordinary(SEQUENCE)
def first_half(x):
    half = x.shape[1] // 2
    return x[:, :half], x[:, half:], torch.cat([x[:, half:], x[:, :half]], 1)


@ordinary(SEQUENCE)
def reversed_and_rolled(x):
    return (
        x.flip(1),
        torch.roll(x, 1, 1),
        torch.roll(x, (1, -2), (1, 2)),
        x.rot90(1, (1, 2)),
        torch.cat([x[:, 1:], x[:, :1]], 1),
    )


@ordinary(X)
def joined(x):
    a, b = x.split([2, 3], 1)
    return (
        torch.cat([b, a], 1) + torch.stack([x, x], 0).sum(0),
        torch.hstack([a, b]),
        torch.vstack([x, x]),
        torch.dstack([x, x]),
    )


@ordinary(T("batch", 12))
def split_in_several_ways(x):
    a, b, c = x.chunk(3, 1)
    d = torch.tensor_split(x, 5, dim=1)
    e = x.split(4, -1)
    return a * b + c, d[0], d[-1], torch.stack(e).sum(0), x.unbind(1)[3]


@ordinary(SEQUENCE)
def repeated(x):
    return (
        x.repeat(1, 2, 1),
        x.repeat_interleave(2, 1),
        x.tile(2),
        x.expand(3, -1, -1, -1),
        x[:, None].expand(-1, 4, -1, -1),
    )


@ordinary(T("batch", "time", 8), T("batch", 8))
def broadcast(x, context):
    joined = torch.cat([x, context.unsqueeze(1).expand(-1, x.shape[1], -1)], -1)
    a, b = torch.broadcast_tensors(x, context[:, None])
    return joined, a + b, context.expand_as(x[:, 0]), x + context.view(x.shape[0], 1, -1)


@ordinary(T("time"), T("keys"))
def grids(t, k):
    rows, columns = torch.meshgrid(t, k, indexing="ij")
    return rows + columns, torch.cartesian_prod(t, k), torch.outer(t, k), t[:, None] - k[None]


@ordinary(IMAGE)
def coordinates(x):
    h, w = x.shape[-2:]
    y, z = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    grid = torch.stack([z, y], -1).float() / torch.tensor([w, h])
    return x + grid.permute(2, 0, 1).sum(0), grid.view(-1, 2)


@ordinary(SEQUENCE)
def causal_mask(x):
    t = x.shape[1]
    keep = torch.tril(torch.ones(t, t, dtype=torch.bool))
    bias = torch.zeros(t, t).masked_fill(~keep, float("-inf"))
    above = torch.triu(torch.full((t, t), float("-inf")), diagonal=1)
    return (x @ x.transpose(1, 2)).masked_fill(~keep, -1e9).softmax(-1), bias, above


@ordinary(SEQUENCE)
def mask_by_comparison(x):
    p = torch.arange(x.shape[1])
    window = (p[:, None] - p[None, :]).abs() <= 2
    return x + p[None, :, None], (p[:, None] <= p[None, :]).float(), window & (p[None] <= p[:, None])


@ordinary(SEQUENCE, ids("batch", high="time"))
def mask_by_lengths(x, lengths):
    keep = torch.arange(x.shape[1])[None, :] < (lengths + 1)[:, None]
    pooled = (x * keep.unsqueeze(-1)).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)
    return pooled, x.masked_fill(~keep[..., None], 0.0), keep.long().cumsum(1)


@ordinary(ids("batch", "time", high=4))
def mask_by_padding(tokens):
    keep = tokens.ne(0)
    positions = (keep.cumsum(1) * keep).long()
    additive = (1.0 - keep[:, None, None, :].float()) * torch.finfo(torch.float32).min
    return additive, positions, keep.sum(-1)


@ordinary(SEQUENCE, ids("batch", high="time"))
def last_token_by_length(x, last):
    return x[torch.arange(x.shape[0]), last], x.gather(1, last.view(-1, 1, 1).expand(-1, 1, 8)).squeeze(1)


@ordinary(X)
def indexing(x):
    return (
        x[:, [3, 1]],
        x[torch.arange(x.shape[0]), 1],
        x[None, ..., 0],
        x[:, torch.tensor([[0, 1], [2, 3]])],
        x[0, 1],
        x[[0]],
    )


@ordinary(T("nodes", 6), ids("edges", high="nodes"), ids("edges", high="nodes"))
def messages_between_nodes(x, source, target):
    messages = x[source] - x[target]
    summed = torch.zeros_like(x).index_add(0, target, messages)
    count = torch.zeros(x.shape[0]).scatter_add(0, target, torch.ones(target.shape[0])).clamp(min=1)
    return summed / count[:, None], messages.norm(dim=-1)


@ordinary(T("nodes", 6), ids(2, "edges", high="nodes"))
class GraphConvolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 16)

    def forward(self, x, edges):
        source, target = edges
        n = x.size(0)
        degree = torch.ones(n).scatter_add(0, target, torch.ones(edges.size(1)))
        norm = (degree[source] * degree[target]).rsqrt()
        h = self.layer(x)
        out = torch.zeros(n, h.size(1)).index_add(0, target, h[source] * norm[:, None])
        return F.elu(out + h / degree.unsqueeze(1))


@ordinary(T("batch", "time", 8), ids("batch", 3, high="time"))
def gathering(x, i):
    return (
        x.gather(1, i.unsqueeze(-1).expand(-1, -1, 8)),
        torch.take_along_dim(x, i[..., None], 1),
        x.index_select(1, i[0]),
        x.take(i),
    )


@ordinary(X)
def gathering_by_constants(x):
    i = torch.tensor([[0, 2, 1, 0, 3]])
    return (
        x.gather(1, i.expand(x.shape[0], -1)),
        x.index_select(1, torch.tensor([4, 0])),
        torch.bucketize(x, torch.tensor([-1.0, 0, 1])),
    )


@ordinary(X)
def topk_and_sort(x):
    v, i = x.topk(3)
    s, order = x.sort(-1, descending=True)
    return (
        v,
        i,
        s,
        order,
        x.argmax(-1),
        x.max(-1),
        x.amax(0),
        x.argsort(1)[:, 0],
        x.min(1).values,
        x.kthvalue(2, 1)[0],
        x.median(1)[0],
    )


@ordinary(SEQUENCE)
def topk_of_a_size(x):
    return x.topk(1, 1)[0], x.mean(-1).argmax(1), x.sort(1)[0], x.cummax(1)[0], x.flatten(1).max(1)[0]


@ordinary(SEQUENCE)
def reductions(x):
    return (
        x.mean(),
        x.sum((0, 1)),
        x.prod(2),
        x.norm(),
        x.norm(dim=-1),
        x.cumsum(1),
        (x > 0).any(1),
        (x > 0).all(),
        x.logsumexp(1),
    )


@ordinary(SEQUENCE)
def statistics(x):
    return (
        x.std(-1),
        x.var(2, unbiased=False),
        torch.var_mean(x, -1),
        x.std(1, correction=0),
        x.mean((1, 2), keepdim=True),
        x.aminmax(dim=1),
    )


@ordinary(SEQUENCE)
def products(x):
    return (
        torch.einsum("bid,bjd->bij", x, x),
        torch.einsum("btd->bd", x),
        torch.einsum("bti,btj->bij", x, x),
        x @ x.mT,
        torch.bmm(x, x.mT),
    )


@ordinary(X)
def products_with_weights(self, x):
    return (
        torch.einsum("bi,ij->bj", x, self.table.t()),
        torch.outer(self.scale, self.offset),
        x @ self.scale,
        torch.addmm(self.scale, x, torch.eye(5)),
        torch.tensordot(x, self.table, dims=([1], [1])),
        torch.kron(torch.eye(2), x),
    )


@ordinary(SEQUENCE)
def windows_of_time(x):
    return x.unfold(2, 4, 2), F.pad(x.transpose(1, 2), (2, 0)).unfold(2, 3, 1).mean(-1)


@ordinary(T("batch", 4, 8, 8))
def patches(x):
    b, c, h, w = x.shape
    p = x.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(b, (h // 4) * (w // 4), 16 * c)
    return p, x.unfold(2, 4, 4).unfold(3, 4, 4).flatten(2)


@ordinary(T("batch", 4, 8, 8))
def window_partition(x):
    b, c, h, w = x.shape
    windows = x.view(b, c, 2, h // 2, 2, w // 2).permute(0, 2, 4, 3, 5, 1).reshape(-1, (h // 2) * (w // 2), c)
    back = windows.view(b, 2, 2, h // 2, w // 2, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w)
    return windows, back, torch.roll(x, (-2, -2), (2, 3))


@ordinary(IMAGE)
def padded_to_a_multiple(x):
    h, w = x.shape[-2:]
    y = F.pad(x, (0, (4 - w % 4) % 4, 0, (4 - h % 4) % 4))
    return y, y[..., :h, :w]


@ordinary(IMAGE)
def image_to_tokens(x):
    b, c, h, w = x.shape
    tokens = x.flatten(2).transpose(1, 2)
    return tokens, tokens.transpose(1, 2).reshape(b, c, h, w), tokens.mean(1)


@ordinary(SEQUENCE)
def loop_over_features(x):
    state = torch.zeros(x.shape[0], x.shape[1])
    for k in range(x.shape[2]):
        state = 0.5 * state + x[:, :, k]
    return torch.stack([c * k for k, c in enumerate(x.unbind(2))], 2), state


@ordinary(ids("batch", "time", high=20), constrained={"time <= 64": ({"time": 65},)})
class SinusoidalPositions(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        position = torch.arange(64).unsqueeze(1)
        rate = torch.exp(torch.arange(0, 16, 2) * (-math.log(10000.0) / 16))
        pe = torch.zeros(64, 16)
        pe[:, 0::2] = torch.sin(position * rate)
        pe[:, 1::2] = torch.cos(position * rate)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, tokens):
        x = self.embed(tokens) * math.sqrt(16)
        return x + self.pe[:, : x.size(1)]


@ordinary(ids("batch", "time", high=20), constrained={"time <= 64": ({"time": 65},)})
class LearnedPositions(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.positions = nn.Embedding(20, 16, padding_idx=0), nn.Embedding(64, 16)
        self.register_buffer("ids", torch.arange(64).expand((1, -1)), persistent=False)

    def forward(self, tokens):
        t = tokens.shape[1]
        return (
            self.embed(tokens) + self.positions(self.ids[:, :t]) + self.positions(torch.arange(t, device=tokens.device))
        )


@ordinary(SEQUENCE)
class RotaryPositions(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rates", 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8)), persistent=False)

    def forward(self, x):
        angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float32), self.rates)
        angles = torch.cat([angles, angles], -1)
        a, b = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()


@ordinary(SEQUENCE)
class AlibiBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("slopes", torch.tensor([2.0 ** (-8 * (k + 1) / 4) for k in range(4)]).view(4, 1, 1))

    def forward(self, x):
        t = x.shape[1]
        distance = torch.arange(t)[None, :] - torch.arange(t)[:, None]
        return (x @ x.mT).unsqueeze(1) + self.slopes * distance.clamp(max=0)


@ordinary(SEQUENCE)
class RelativePositions(nn.Module):
    """Buckets as those of T5."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Embedding(32, 4)

    def forward(self, x):
        t = x.shape[1]
        distance = (torch.arange(t)[:, None] - torch.arange(t)[None]).clamp(min=0)
        large = 16 + (torch.log(distance.float().clamp(min=1) / 16) / math.log(8) * 16).long()
        bucket = torch.where(distance < 16, distance, large.clamp(max=31))
        return self.bias(bucket).permute(2, 0, 1)


@ordinary(T("batch", 2, "height", "width"), T("batch", 2, "height", "width"))
def intersection_over_union(a, b):
    a, b = a.sigmoid().flatten(1), (b > 0).flatten(1)
    inter = (a * b).sum(1)
    return (inter + 1e-6) / (a.sum(1) + b.sum(1) - inter + 1e-6)


@ordinary(T("nodes", 4, low=0.0, high=5.0), T("keys", 4, low=0.0, high=5.0))
def pairwise_boxes(a, b):
    top, bottom = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
    w, h = (bottom - top).clamp(min=0).unbind(-1)
    centers = (a[:, :2] + a[:, 2:]) / 2
    return w * h, torch.cdist(centers, b[:, :2]), torch.cat([centers, a[:, 2:] - a[:, :2]], 1)
