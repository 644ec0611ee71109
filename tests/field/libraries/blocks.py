"""Blocks of attention, of experts, of slots, and of places, each from a package of its own."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch

from ..row import Calls, Model, Row, models, randint, randn

_TOKENS = {0: "batch", 1: "tokens"}
_BATCH = {0: "batch"}
_POINTS = {0: "batch", 1: "points"}
_SIZES = ((2, 9), (1, 20), (3, 5))


def _vectors(width: int, sizes: Any = _SIZES) -> Calls:
    return [(randn(b, t, width),) for b, t in sizes]


def _words(sizes: Any = _SIZES) -> Calls:
    return [(randint(50, b, t),) for b, t in sizes]


def _maps(*sizes: tuple[int, int, int]) -> Calls:
    return [(randn(b, 16, h, w),) for b, h, w in sizes]


def _block(
    package: str, name: str, calls: Calls, *dims: Any, module: str = "", call: Any = None, **options: Any
) -> tuple[Row, ...]:
    """A row with the name of the class."""

    def build() -> Model:
        make = getattr(import_module(module or package.replace("-", "_")), name)
        return Model(make(**options), calls, dims, call=call)

    return models(package, {name: build})


def _places(width: int, seed: int = 1) -> Calls:
    """Features and places of points."""
    return [(randn(b, n, width), randn(b, n, 3, seed=seed)) for b, n in _SIZES]


_HEADS = {"heads": 2, "dim_head": 16}

ATTENTION = (
    *_block("nystrom-attention", "Nystromformer", _vectors(32), _TOKENS, dim=32, depth=1, num_landmarks=4, **_HEADS),
    *_block("agent-attention-pytorch", "AgentTransformer", _vectors(32), _TOKENS, dim=32, depth=1, num_agent_tokens=4, **_HEADS),
    *_block("memory-efficient-attention-pytorch", "Attention", _vectors(32), _TOKENS, dim=32, memory_efficient=True, q_bucket_size=4, k_bucket_size=4, **_HEADS),
    *_block("mega-pytorch", "Mega", _words(), _TOKENS, dim=16, num_tokens=50, depth=1, ema_heads=2, attn_dim_qk=16, attn_dim_value=16),
    *_block("charformer-pytorch", "GBST", _words(), _TOKENS, num_tokens=50, dim=16, max_block_size=4, downsample_factor=2),
    *_block("rela-transformer", "ReLATransformer", _words(), _TOKENS, num_tokens=50, dim=32, depth=1, max_seq_len=64, **_HEADS),
    *_block(
        "h-transformer-1d", "HTransformer1D", _words(((2, 16), (1, 32), (3, 64))), _TOKENS,
        num_tokens=50, dim=32, depth=1, max_seq_len=64, block_size=4, **_HEADS,
    ),
    *_block("taylor-series-linear-attention", "TaylorSeriesLinearAttn", _vectors(32), _TOKENS, dim=32, heads=2, dim_head=8),
    *_block("gateloop-transformer", "SimpleGateLoopLayer", _vectors(16), _TOKENS, dim=16),
    *_block("isab-pytorch", "ISAB", _vectors(32), _TOKENS, dim=32, heads=2, num_latents=6),
    *_block("lambda-networks", "LambdaLayer", _maps((1, 16, 16), (2, 12, 20), (3, 9, 9)), {0: "batch", 2: "h", 3: "w"}, dim=16, dim_k=8, heads=4, r=5),
    *_block("halonet-pytorch", "HaloAttention", _maps((1, 16, 16), (2, 24, 16), (1, 8, 32)), {0: "batch", 2: "h", 3: "w"}, dim=16, block_size=4, halo_size=2, **_HEADS),
    *_block("bottleneck-transformer-pytorch", "BottleStack", _maps((1, 16, 16), (2, 16, 16), (3, 16, 16)), _BATCH, dim=16, fmap_size=16, dim_out=32, num_layers=1, rel_pos_emb=True, **_HEADS),
    *_block("timesformer-pytorch", "TimeSformer", [(randn(b, 4, 3, 32, 32),) for b in (2, 1, 3)], _BATCH, dim=32, num_frames=4, num_classes=5, image_size=32, patch_size=8, depth=1, **_HEADS),
)  # fmt: skip

EXPERTS = (
    *_block("soft-moe-pytorch", "SoftMoE", _vectors(16), _TOKENS, dim=16, num_experts=2, num_slots=2),
    *_block("soft-moe-pytorch", "DynamicSlotsSoftMoE", _vectors(16), _TOKENS, dim=16, num_experts=2),
    *_block("mixture-of-experts", "MoE", _vectors(16), _TOKENS, dim=16, num_experts=4, second_policy_eval="all", call=lambda model, x: model(x)[0]),
)  # fmt: skip

TABLES = (
)  # fmt: skip

PLACES = (
    *_block("egnn-pytorch", "EGNN", _places(8), _POINTS, _POINTS, dim=8),
    *_block("egnn-pytorch", "EGNN_Network", [(randint(9, b, n), randn(b, n, 3)) for b, n in _SIZES], _POINTS, _POINTS, num_tokens=9, dim=8, depth=2, num_nearest_neighbors=3),
    *_block(
        "invariant-point-attention", "IPABlock",
        [(x, torch.linalg.qr(randn(*x.shape[:2], 3, 3)).Q, randn(*x.shape[:2], 3)) for (x,) in _vectors(16)], _TOKENS, _TOKENS, _TOKENS,
        call=lambda model, x, turns, moves: model(x, rotations=turns, translations=moves), dim=16, heads=2, require_pairwise_repr=False,
    ),
    *_block("point-transformer-pytorch", "PointTransformerLayer", _places(8), _POINTS, _POINTS, dim=8, num_neighbors=4),
    *_block("graph-transformer-pytorch", "GraphTransformer", [(randn(b, n, 16), randn(b, n, n, 4)) for b, n in _SIZES], _POINTS, {**_POINTS, 2: "points"}, dim=16, depth=1, edge_dim=4, with_feedforwards=True, **_HEADS),
)  # fmt: skip


def _closed_form(kind: str) -> Model:
    torch.manual_seed(0)
    layers, wirings = import_module("ncps.torch"), import_module("ncps.wirings")
    units = wirings.AutoNCP(12, 3) if kind.endswith("wired") else 12
    return Model(getattr(layers, kind.partition("_")[0])(4, units), _vectors(4), (_TOKENS,))


NCPS = models("ncps", {kind: partial(_closed_form, kind) for kind in ("CfC", "CfC_wired", "LTC")})
