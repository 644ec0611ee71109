"""Forecasts of time series: networks of one series, and of five that depend on each other."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch

from ..row import Model, models, randn

_BATCH = {0: "batch"}


def _forecast(name: str, series: int = 1, **options: Any) -> Model:
    """A model of windows of 24 steps that forecasts 8, without other variables."""
    make = getattr(import_module("neuralforecast.models"), name)
    several = {"n_series": series} if series > 1 else {}
    model = make(h=8, input_size=24, accelerator="cpu", logger=False, **several, **options)

    def call(model: Any, past: torch.Tensor, mask: torch.Tensor) -> Any:
        others = {"hist_exog": None, "futr_exog": None, "stat_exog": None}
        return model({"insample_y": past, "insample_mask": mask, **others})

    calls = [(randn(n, 24, series), torch.ones(n, 24, series)) for n in (4, 1, 7)]
    return Model(model, calls, (_BATCH, _BATCH), call=call)


_UNITS = {"mlp_units": [[16, 16]] * 3}

NEURALFORECAST = models(
    "neuralforecast",
    {
        "BiTCN": partial(_forecast, "BiTCN", hidden_size=8),
        "DeepNPTS": partial(_forecast, "DeepNPTS", hidden_size=8),
        "DLinear": partial(_forecast, "DLinear", moving_avg_window=5),
        "Informer": partial(_forecast, "Informer", hidden_size=16, n_head=2, encoder_layers=1, conv_hidden_size=8),
        "iTransformer": partial(_forecast, "iTransformer", 5, hidden_size=16, n_heads=2, e_layers=1, d_ff=16),
        "KAN": partial(_forecast, "KAN", hidden_size=16),
        "LSTM": partial(_forecast, "LSTM", encoder_hidden_size=16, encoder_n_layers=1, decoder_hidden_size=16),
        "MLP": partial(_forecast, "MLP", hidden_size=16),
        "NBEATS": partial(_forecast, "NBEATS", **_UNITS),
        "NHITS": partial(_forecast, "NHITS", **_UNITS),
        "NLinear": partial(_forecast, "NLinear"),
        "PatchTST": partial(_forecast, "PatchTST", encoder_layers=1, n_heads=2, hidden_size=16, linear_hidden_size=16, patch_len=8),
        "SOFTS": partial(_forecast, "SOFTS", 5, hidden_size=16, d_core=8, e_layers=1, d_ff=16),
        "TCN": partial(_forecast, "TCN", encoder_hidden_size=8, decoder_hidden_size=8),
        "TFT": partial(_forecast, "TFT", hidden_size=16, n_head=2),
        "TiDE": partial(_forecast, "TiDE", hidden_size=16, decoder_output_dim=4, temporal_decoder_dim=8),
        "TimeMixer": partial(_forecast, "TimeMixer", 5, d_model=8, d_ff=8, e_layers=1, moving_avg=5),
        "TimesNet": partial(_forecast, "TimesNet", hidden_size=8, conv_hidden_size=8, top_k=2, num_kernels=2, encoder_layers=1),
        "TimeXer": partial(_forecast, "TimeXer", 5, patch_len=8, hidden_size=16, n_heads=2, e_layers=1, d_ff=16),
        "TSMixer": partial(_forecast, "TSMixer", 5, ff_dim=8),
        "VanillaTransformer": partial(_forecast, "VanillaTransformer", hidden_size=16, n_head=2, encoder_layers=1, conv_hidden_size=8),
    },
)  # fmt: skip
