"""Attention and transformers in common spellings."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .harness import T, ids, mask, ordinary

X = T("batch", "time", 8)
HEADS = T("batch", 2, "time", 8)


@ordinary(HEADS, half=True)
def scaled_dot_product(x):
    return F.scaled_dot_product_attention(x, x, x), F.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.5)


@ordinary(HEADS, T("batch", 2, "keys", 8), T("batch", 2, "keys", 4), mask("batch", 1, "time", "keys"))
def masked(q, k, v, keep):
    keep = keep | (torch.arange(k.shape[2]) == 0)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep), F.scaled_dot_product_attention(
        q, k, v, attn_mask=keep * 1.0
    )


@ordinary(T("batch", 4, "time", 8), T("batch", 2, "time", 8))
def grouped_queries(q, kv):
    wide = kv[:, :, None].expand(-1, -1, 2, -1, -1).reshape(q.shape)
    return F.scaled_dot_product_attention(q, kv, kv, enable_gqa=True), F.scaled_dot_product_attention(
        q, wide, wide, is_causal=True
    )


@ordinary(HEADS, half=True)
def written_out(x):
    scores = torch.matmul(x, x.transpose(-2, -1)) / math.sqrt(x.size(-1))
    scores = scores.masked_fill(torch.triu(torch.ones_like(scores, dtype=torch.bool), 1), float("-inf"))
    return torch.matmul(F.dropout(scores.softmax(-1), 0.1, training=False), x)


@ordinary(X, half=True, constrained={"time <= 32": ({"time": 33},)})
class SelfAttention(nn.Module):
    """nanoGPT's: one projection, a buffer with the mask."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.register_buffer("bias", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.qkv(x).split(c, dim=2)
        q, k, v = (y.view(b, t, 2, c // 2).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.out(y.transpose(1, 2).contiguous().view(b, t, c))


@ordinary(X, T("batch", "keys", 8))
class CrossAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(8, 16, bias=False), nn.Linear(8, 32, bias=False), nn.Linear(16, 8)

    def forward(self, x, context):
        b = x.shape[0]
        q = self.q(x).view(b, -1, 4, 4).transpose(1, 2)
        k, v = self.kv(context).view(b, -1, 2, 4, 4).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@ordinary(X, ids("batch", "time", high=3))
class EncoderBlock(nn.Module):
    """BERT's: padding mask, post-norm."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.n1, self.n2 = nn.LayerNorm(8, eps=1e-12), nn.LayerNorm(8, eps=1e-12)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x, tokens):
        bias = (1.0 - (tokens > 0)[:, None, None, :].to(x.dtype)) * -10000.0
        q, k, v = (layer(x).view(x.shape[0], -1, 2, 4).permute(0, 2, 1, 3) for layer in (self.q, self.k, self.v))
        p = (q @ k.transpose(-1, -2) / math.sqrt(4) + bias).softmax(-1)
        x = self.n1(x + self.o((p @ v).permute(0, 2, 1, 3).reshape(x.shape)))
        return self.n2(x + self.down(F.gelu(self.up(x))))


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x):
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


@ordinary(ids("batch", "time", high=20))
class TinyLlama(nn.Module):
    """RMS norm, rotary positions, SwiGLU, tied head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.n1, self.n2, self.n3 = RMSNorm(16), RMSNorm(16), RMSNorm(16)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(16, 32, False), nn.Linear(16, 32, False), nn.Linear(32, 16, False)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        b, t = tokens.shape
        x = self.embed(tokens)
        angles = torch.outer(torch.arange(t).float(), 1.0 / (10000.0 ** (torch.arange(0, 8, 2) / 8)))
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        q, k, v = (f(self.n1(x)).view(b, t, 2, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, 16))
        x = x + self.down(F.silu(self.gate(self.n2(x))) * self.up(self.n2(x)))
        return self.head(self.n3(x)).float()


@ordinary(T("batch", 1, 8), T("batch", 2, "past", 4), T("batch", 2, "past", 4), sizes={"past": (5, 8)})
class DecodingStep(nn.Module):
    """One token after a cache."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x, keys, values):
        q, k, v = self.qkv(x).view(x.shape[0], 1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        return F.scaled_dot_product_attention(q, keys, values), keys, values


@ordinary(T("batch", 3, 8, 8))
class TinyViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.cls, self.pos = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 5, 16))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, activation="gelu")
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.block(x))[:, 0])


@ordinary(T("batch", 3, "height", "width"))
class ViTWithResizedPositions(nn.Module):
    """Any image size: position embeddings are interpolated."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 1)
        self.pos = nn.Parameter(torch.randn(1, 8, 3, 3))

    def forward(self, x):
        x = self.patch(x)
        pos = F.interpolate(self.pos, size=x.shape[-2:], mode="bilinear", align_corners=False)
        return (x + pos).flatten(2).transpose(1, 2)


@ordinary(T("batch", 4, "height", "width"))
class SpatialAttention(nn.Module):
    """A diffusion model's."""

    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(2, 4)
        self.q, self.k, self.v, self.out = (nn.Conv2d(4, 4, 1) for _ in range(4))

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.norm(x)
        q, k, v = (f(y).reshape(b, c, h * w) for f in (self.q, self.k, self.v))
        p = (torch.bmm(q.permute(0, 2, 1), k) * c**-0.5).softmax(2)
        return x + self.out(torch.bmm(v, p.permute(0, 2, 1)).reshape(b, c, h, w))


@ordinary(X)
class AttentionPooling(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.query = nn.Linear(8, 1), nn.Parameter(torch.randn(2, 8))

    def forward(self, x):
        w = self.score(x).softmax(1)
        p = torch.einsum("qd,btd->bqt", self.query, x).softmax(-1)
        return (w * x).sum(1), p @ x


@ordinary(X)
class LinearAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 48, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("btd,bte->bde", k, v)
        return torch.einsum("btd,bde->bte", q, kv) / (q @ k.sum(1, keepdim=True).transpose(1, 2) + 1e-6)


@ordinary(X)
class RelativeBias(nn.Module):
    """Swin's relative position bias table, indexed by a buffer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(25, 2))
        c = torch.stack(torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij")).flatten(1)
        d = (c[:, :, None] - c[:, None, :]).permute(1, 2, 0) + 2
        self.register_buffer("index", d[..., 0] * 5 + d[..., 1])

    def forward(self, x):
        bias = self.table[self.index.view(-1)].view(9, 9, 2).permute(2, 0, 1).contiguous()
        x = x[:, :1].expand(-1, 9, -1).reshape(-1, 9, 2, 4).transpose(1, 2)
        return F.softmax(x @ x.transpose(-2, -1) + bias.unsqueeze(0), -1) @ x


@ordinary(
    T("batch", "time", 8),
    T("batch", "queries", 8),
    mask("batch", "time"),
)
class EncoderDecoder(nn.Module):
    """nn.Transformer with its masks."""

    def __init__(self):
        super().__init__()
        self.body = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

    def forward(self, source, target, padded):
        padded = padded & (torch.arange(source.shape[1]) > 0)
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.body(source, target, tgt_mask=causal, src_key_padding_mask=padded, memory_key_padding_mask=padded)


@ordinary(X, ids("batch", high="time"))
class PaddedEncoder(nn.Module):
    """Sequences of several lengths. In eager mode torch packs them and returns zeros for the padding."""

    def __init__(self):
        super().__init__()
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)

    def forward(self, x, last):
        padded = torch.arange(x.shape[1]) > last.unsqueeze(1)
        return self.body(x, src_key_padding_mask=padded).masked_fill(padded.unsqueeze(-1), 0.0)


@ordinary(X)
class MultiheadWithWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        t = x.shape[1]
        causal = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        return self.attention(x, x, x, attn_mask=causal, need_weights=True, average_attn_weights=False)


@ordinary(T("time", "batch", 8), T("keys", "batch", 6))
class MultiheadOfOtherWidths(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, add_bias_kv=True)

    def forward(self, x, context):
        return self.attention(x, context, context, need_weights=False)[0]
