"""Forecasts of time series, and codecs and diffusion of sounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..row import Calls, Model, make, models, rand, randint, randn

_BATCH = {0: "batch"}
_FRAMES = {0: "batch", 1: "frames"}
_TRANSFORMER = {
    **{"prediction_length": 7, "context_length": 16, "d_model": 16, "nhead": 2, "dim_feedforward": 16, "dropout": 0.0},
    **{"activation": "relu", "norm_first": False, "num_encoder_layers": 1},
}


def _forecast(path: str, call: Callable[..., Any] | None = None, **options: Any) -> Model:
    """A model of GluonTS with the inputs that it describes: series, features of times, and categories."""
    model = make(f"gluonts.torch.model.{path}", **options)

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        found = []
        for seed, (name, each) in enumerate(model.describe_inputs(batch).items()):
            is_kind, is_seen = "cat" in name, "observed" in name
            value = randint(2, *each.shape, seed=seed) if is_kind or is_seen else randn(*each.shape, seed=seed)
            found.append(value.float() if is_seen else value)
        return tuple(found)

    calls = [inputs(batch) for batch in (2, 3, 1)]
    return Model(model, calls, (_BATCH,) * len(calls[0]), call=call)


def _deep_ar(call: Callable[..., Any]) -> Model:
    return _forecast(
        "deepar.module.DeepARModel", call, freq="D", context_length=14, prediction_length=7, lags_seq=[1, 2, 3, 7], num_feat_dynamic_real=2,
        num_feat_static_real=1, num_feat_static_cat=1, cardinality=[4],
    )  # fmt: skip


def _fusion() -> Model:
    return _forecast(
        "tft.module.TemporalFusionTransformerModel", context_length=14, prediction_length=7, d_hidden=8, d_var=4, num_heads=2,
        d_past_feat_dynamic_real=[1], c_past_feat_dynamic_cat=[2], d_feat_dynamic_real=[2], c_feat_dynamic_cat=[3], d_feat_static_real=[1],
        c_feat_static_cat=[4],
    )  # fmt: skip


GLUONTS = models(
    "gluonts",
    {
        "DLinear": lambda: _forecast("d_linear.module.DLinearModel", prediction_length=7, context_length=14, hidden_dimension=8),
        "DeepAR": lambda: _deep_ar(lambda model, *given: model.unroll_lagged_rnn(*given[:5], given[5][:, :1])[:3]),
        "DeepAR.log_prob": lambda: _deep_ar(lambda model, *given: model.log_prob(*given, given[5][..., 0])),
        "LagTST": lambda: _forecast("lag_tst.module.LagTSTModel", freq="D", scaling="mean", **_TRANSFORMER),
        "PatchTST": lambda: _forecast(
            "patch_tst.module.PatchTSTModel", patch_len=4, stride=2, padding_patch="end", num_feat_dynamic_real=2, scaling="std", **_TRANSFORMER
        ),
        "SimpleFeedForward": lambda: _forecast("simple_feedforward.module.SimpleFeedForwardModel", prediction_length=7, context_length=14),
        "TemporalFusionTransformer": _fusion,
    },
)  # fmt: skip


def _speech(path: str, call: Callable[..., Any] = lambda model, *given: model(*given), **options: Any) -> Model:
    """A model of F5-TTS: the noise, the sound to continue, its text, and the time of the diffusion."""
    model = make(
        f"f5_tts.model.backbones.{path}",
        dim=32,
        depth=2,
        heads=2,
        dim_head=16,
        ff_mult=2,
        mel_dim=10,
        text_num_embeds=20,
        **options,
    )
    sizes = ((2, 20, 7), (1, 33, 12), (3, 11, 11))
    calls = [(randn(b, t, 10), randn(b, t, 10, seed=1), randint(20, b, n), rand(b)) for b, t, n in sizes]
    return Model(model, calls, (_FRAMES, _FRAMES, {0: "batch", 1: "text"}, _BATCH), call=call)


F5_TTS = models(
    "f5-tts",
    {
        "DiT": lambda: _speech("dit.DiT", text_dim=16, conv_layers=1),
        "DiT.guided": lambda: _speech("dit.DiT", lambda model, *given: model(*given, cfg_infer=True), text_dim=16, conv_layers=1),
        "DiT.long_skip": lambda: _speech("dit.DiT", text_dim=16, conv_layers=1, long_skip_connection=True, qk_norm="rms_norm"),
        "MMDiT": lambda: _speech("mmdit.MMDiT"),
        "UNetT": lambda: _speech("unett.UNetT"),
    },
)  # fmt: skip


def _lines(*lengths: int) -> Calls:
    return [(randn(1 + number, 1, n),) for number, n in enumerate(lengths)]


def _snac(call: Callable[..., Any]) -> Model:
    options = {
        "encoder_dim": 8,
        "encoder_rates": [2, 4],
        "decoder_dim": 32,
        "decoder_rates": [4, 2],
        "vq_strides": [4, 2, 1],
    }
    model = make("snac.SNAC", attn_window_size=None, codebook_size=16, noise=False, **options)
    return Model(model, _lines(640, 1280, 320), ({0: "batch", 2: "samples"},), call=call)


SNAC = models(
    "snac",
    {
        "codec": partial(_snac, lambda model, x: model(x)[0]),
        "encoder": partial(_snac, lambda model, x: model.encode(x)),
    },
)
