"""Every module of torch.nn that computes something, one module in each row."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .harness import Row, T, ids, limit

X = T("batch", 8)
SEQUENCE = T("batch", "time", 8)
SIGNAL = T("batch", 4, "time")
IMAGE = T("batch", 4, "height", "width")
VOLUME = T("batch", 2, "depth", "height", "width")
SMALL = {"depth": (4, 6), "height": (6, 8), "width": (7, 9)}


def _row(module: Any, *arguments: Any, on: Any, name: str = "", **options: Any) -> Row:
    """A row of one module.

    Args:
        module: Its class.
        *arguments: Arguments of the constructor; a dict at the end holds keywords.
        on: Its inputs.
        name: Suffix of the row's name.
        **options: Further attributes of the ``Row``.
    """
    keywords = arguments[-1] if arguments and isinstance(arguments[-1], dict) else {}
    positional = arguments[:-1] if keywords else arguments
    inputs = on if isinstance(on, tuple) else (on,)
    label = f"{module.__name__}_{name}" if name else module.__name__
    return Row(label, lambda: module(*positional, **keywords), inputs, **options)


def _at_least(size: int, *dims: str) -> dict[str, tuple[dict[str, int], ...]]:
    return {f"{dim} >= {size}": ({dim: 1},) for dim in dims}


class InParallel(nn.Module):
    """Modules of the same input, side by side."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(modules)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [branch(x * 1) for branch in self.branches]


ACTIVATIONS = (
    Row("ReLU", lambda: nn.ReLU(inplace=True), (SEQUENCE,)),
    Row(
        "piecewise",
        lambda: InParallel(
            *(nn.ReLU(True), nn.ReLU6(), nn.LeakyReLU(0.2), nn.PReLU(), nn.RReLU(), nn.Hardswish(), nn.Hardsigmoid()),
            *(nn.Hardtanh(-0.5, 0.7), nn.Hardshrink(0.3), nn.Softshrink(0.3), nn.Threshold(0.1, 20.0)),
        ),
        (SEQUENCE,),
        half=True,
    ),
    Row(
        "smooth",
        lambda: InParallel(
            *(nn.ELU(0.7), nn.CELU(0.7), nn.SELU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.Tanhshrink()),
            *(nn.Sigmoid(), nn.LogSigmoid(), nn.Tanh(), nn.Softplus(2.0), nn.Softsign(), nn.GLU()),
        ),
        (SEQUENCE,),
        half=True,
    ),
    Row(
        "softmaxes",
        lambda: InParallel(nn.Softmax(-1), nn.Softmin(-1), nn.LogSoftmax(1), nn.Softmax(0)),
        (SEQUENCE,),
        half=True,
    ),
)

LINEAR = (
    _row(nn.Linear, 8, 12, on=SEQUENCE, half=True),
    _row(nn.Linear, 8, 12, {"bias": False}, on=X, name="without_bias"),
    _row(nn.Linear, 8, 1, on=T("batch", "time", "height", 8), name="of_rank_4"),
    _row(nn.Bilinear, 8, 6, 12, on=(X, T("batch", 6))),
    _row(nn.Identity, on=X),
    _row(nn.Flatten, on=T("batch", 4, 3, 2)),
    _row(nn.Unflatten, 1, (2, 4), on=X),
    _row(nn.Embedding, 20, 8, {"padding_idx": 0}, on=ids("batch", "time", high=20)),
    _row(nn.Embedding, 20, 8, {"max_norm": 1.0}, on=ids("batch", high=20), name="of_bounded_norm"),
    _row(nn.EmbeddingBag, 20, 8, on=ids("batch", 3, high=20)),
    _row(nn.EmbeddingBag, 20, 8, {"mode": "sum"}, on=(ids("time", high=20), torch.tensor([0, 1])), name="with_offsets"),
    _row(nn.CosineSimilarity, on=(X, X)),
    _row(nn.PairwiseDistance, on=(X, X)),
    _row(nn.ChannelShuffle, 2, on=T("batch", 4, 3, 5)),
    _row(nn.PixelShuffle, 2, on=IMAGE, half=True),
    _row(
        nn.PixelUnshuffle,
        2,
        on=IMAGE,
        constrained={"height % 2 == 0": ({"height": 1},), "width % 2 == 0": ({"width": 1},)},
    ),
    _row(nn.Softmax2d, on=IMAGE),
    _row(nn.Dropout, 0.3, on=X),
    _row(nn.Dropout1d, on=SIGNAL),
    _row(nn.Dropout2d, on=IMAGE),
    _row(nn.Dropout3d, on=VOLUME, sizes=SMALL),
    _row(nn.AlphaDropout, on=X),
    _row(nn.FeatureAlphaDropout, on=IMAGE),
)

VALIDATED = limit("ours", "torch rejects statistics of one value, and no constraint excludes that size")

NORMALIZATION = (
    _row(nn.BatchNorm1d, 8, on=X, half=True),
    _row(nn.BatchNorm1d, 4, on=SIGNAL, name="of_signals"),
    _row(nn.BatchNorm2d, 4, {"affine": False}, on=IMAGE),
    _row(nn.BatchNorm2d, 4, {"track_running_stats": False}, on=IMAGE, name="of_the_batch", marks=VALIDATED),
    _row(nn.BatchNorm3d, 2, on=VOLUME, sizes=SMALL),
    _row(nn.SyncBatchNorm, 4, on=IMAGE),
    _row(nn.InstanceNorm1d, 4, on=SIGNAL, constrained=_at_least(2, "time"), marks=VALIDATED),
    _row(nn.InstanceNorm2d, 4, {"affine": True}, on=IMAGE, marks=VALIDATED),
    _row(nn.InstanceNorm2d, 4, {"track_running_stats": True}, on=IMAGE, name="tracked"),
    _row(nn.InstanceNorm3d, 2, on=T("batch", 2, 2, "height", "width"), sizes=SMALL),
    _row(nn.LayerNorm, 8, on=SEQUENCE, half=True),
    _row(nn.LayerNorm, (2, 8), {"elementwise_affine": False}, on=T("batch", 2, 8), name="over_two_axes"),
    _row(nn.GroupNorm, 2, 4, on=IMAGE, half=True),
    _row(nn.RMSNorm, 8, on=SEQUENCE, half=True),
    _row(nn.LocalResponseNorm, 3, on=IMAGE),
)

CONVOLUTIONS = (
    _row(nn.Conv1d, 4, 8, 3, on=SIGNAL, constrained=_at_least(3, "time")),
    _row(nn.Conv1d, 4, 8, 3, {"padding": "same", "dilation": 2}, on=SIGNAL, name="same"),
    _row(nn.Conv2d, 4, 8, 3, {"padding": 1, "stride": 2, "groups": 2}, on=IMAGE, half=True),
    _row(
        nn.Conv2d, 4, 8, (3, 5), on=IMAGE, name="unpadded", constrained=_at_least(3, "height") | _at_least(5, "width")
    ),
    _row(nn.Conv2d, 4, 8, 3, {"padding": 1, "padding_mode": "replicate"}, on=IMAGE, name="replicating"),
    _row(nn.Conv2d, 4, 8, 3, {"padding": 1, "padding_mode": "circular"}, on=IMAGE, name="circular"),
    _row(nn.Conv3d, 2, 3, 3, {"padding": 1}, on=VOLUME, sizes=SMALL),
    _row(nn.ConvTranspose1d, 4, 3, 3, {"stride": 2}, on=SIGNAL),
    _row(nn.ConvTranspose2d, 4, 6, 4, {"stride": 2, "padding": 1, "groups": 2}, on=IMAGE),
    _row(nn.ConvTranspose2d, 4, 6, 3, 2, 1, 1, on=IMAGE, name="output_padding"),
    _row(nn.ConvTranspose3d, 2, 3, 2, {"stride": 2}, on=VOLUME, sizes=SMALL),
    _row(nn.Unfold, 3, {"padding": 1}, on=IMAGE),
    _row(nn.Fold, (4, 4), 2, {"stride": 2}, on=T("batch", 8, 4)),
)

POOLING = (
    _row(nn.MaxPool1d, 2, {"ceil_mode": True}, on=SIGNAL),
    _row(nn.MaxPool2d, 3, 2, 1, on=IMAGE, half=True),
    _row(nn.MaxPool2d, 2, on=IMAGE, name="halving", constrained=_at_least(2, "height", "width")),
    _row(nn.MaxPool2d, 3, 1, 1, {"return_indices": True}, on=T("batch", 4, 6, 7), name="with_indices"),
    _row(nn.MaxPool3d, 3, 2, 1, on=VOLUME, sizes=SMALL),
    _row(nn.AvgPool1d, 3, 1, 1, on=SIGNAL),
    _row(nn.AvgPool2d, 3, {"stride": 2, "padding": 1, "count_include_pad": False}, on=IMAGE),
    _row(nn.AvgPool2d, 3, 2, {"ceil_mode": True}, on=T("batch", 4, 6, 8), name="ceil"),
    _row(
        nn.AvgPool3d,
        2,
        {"ceil_mode": True},
        on=VOLUME,
        sizes=SMALL,
        constrained=_at_least(2, "depth", "height", "width"),
    ),
    _row(nn.LPPool1d, 2, 3, on=SIGNAL, constrained=_at_least(3, "time")),
    _row(nn.LPPool2d, 2, 2, on=IMAGE, constrained=_at_least(2, "height", "width")),
    _row(nn.LPPool3d, 2, 2, on=VOLUME, sizes=SMALL, constrained=_at_least(2, "depth", "height", "width")),
    _row(nn.AdaptiveAvgPool1d, 1, on=SIGNAL),
    _row(nn.AdaptiveAvgPool2d, (1, 1), on=IMAGE, half=True),
    _row(nn.AdaptiveAvgPool2d, (2, 3), on=T("batch", 4, 6, 7), name="to_a_size"),
    _row(nn.AdaptiveAvgPool3d, 1, on=VOLUME, sizes=SMALL),
    _row(nn.AdaptiveMaxPool1d, 1, on=SIGNAL),
    _row(nn.AdaptiveMaxPool2d, (2, None), on=T("batch", 4, 6, 7)),
    _row(nn.AdaptiveMaxPool3d, 1, on=VOLUME, sizes=SMALL),
    _row(nn.MaxUnpool1d, 2, on=(T(2, 4, 3), torch.arange(0, 6, 2).expand(2, 4, 3).contiguous())),
    _row(nn.MaxUnpool2d, 2, on=(T(1, 2, 2, 2), torch.tensor([[0, 3], [9, 14]]).expand(1, 2, 2, 2).contiguous())),
    _row(
        nn.MaxUnpool3d,
        1,
        on=(T(1, 2, 2, 1, 1), torch.tensor([0, 1]).reshape(1, 1, 2, 1, 1).expand(1, 2, 2, 1, 1).contiguous()),
    ),
    _row(
        nn.FractionalMaxPool2d, 2, {"output_size": 3, "_random_samples": torch.full((2, 4, 2), 0.5)}, on=T(2, 4, 6, 7)
    ),
    _row(
        nn.FractionalMaxPool3d,
        2,
        {"output_size": 2, "_random_samples": torch.full((1, 2, 3), 0.5)},
        on=T(1, 2, 5, 5, 5),
    ),
)

PADDING = tuple(
    _row(module, *arguments, on=on, sizes=SMALL)
    for module, arguments, on in (
        (nn.ZeroPad1d, (2,), SIGNAL),
        (nn.ZeroPad2d, ((1, 0, 2, 0),), IMAGE),
        (nn.ZeroPad3d, (1,), VOLUME),
        (nn.ConstantPad1d, (2, 3.5), SIGNAL),
        (nn.ConstantPad2d, (1, -1.0), IMAGE),
        (nn.ConstantPad3d, (1, 0.5), VOLUME),
        (nn.ReplicationPad1d, (2,), SIGNAL),
        (nn.ReplicationPad2d, (1,), IMAGE),
        (nn.ReplicationPad3d, (1,), VOLUME),
        (nn.CircularPad1d, (1,), SIGNAL),
        (nn.CircularPad2d, (1,), IMAGE),
        (nn.CircularPad3d, (1,), VOLUME),
    )
)

REFLECTION = (
    _row(nn.ReflectionPad1d, 2, on=SIGNAL, constrained=_at_least(3, "time")),
    _row(nn.ReflectionPad2d, 1, on=IMAGE, constrained=_at_least(2, "height", "width")),
    _row(nn.ReflectionPad3d, 1, on=VOLUME, sizes=SMALL, constrained=_at_least(2, "depth", "height", "width")),
)

RESIZING = (
    _row(nn.Upsample, {"scale_factor": 2}, on=IMAGE, half=True),
    _row(nn.Upsample, {"scale_factor": 1.5, "mode": "bilinear"}, on=IMAGE, name="bilinear"),
    _row(
        nn.Upsample, {"size": (5, 9), "mode": "bicubic", "align_corners": True}, on=T("batch", 4, 6, 7), name="bicubic"
    ),
    _row(nn.Upsample, {"scale_factor": 2, "mode": "linear"}, on=SIGNAL, name="linear"),
    _row(nn.UpsamplingNearest2d, {"scale_factor": 3}, on=IMAGE),
    _row(nn.UpsamplingBilinear2d, {"size": (5, 9)}, on=T("batch", 4, 6, 7)),
)

RECURRENT = (
    _row(nn.RNN, 8, 6, {"nonlinearity": "relu", "batch_first": True}, on=SEQUENCE),
    _row(nn.LSTM, 8, 6, 2, {"batch_first": True, "bidirectional": True}, on=SEQUENCE, half=True),
    _row(nn.LSTM, 8, 6, {"proj_size": 3}, on=T("time", "batch", 8), name="projected"),
    _row(nn.GRU, 8, 6, {"num_layers": 2, "dropout": 0.2}, on=T("time", "batch", 8)),
    _row(nn.GRU, 8, 6, on=T("time", 8), name="without_batch"),
    _row(nn.RNNCell, 8, 6, on=X),
    _row(nn.LSTMCell, 8, 6, on=(X, (T("batch", 6), T("batch", 6)))),
    _row(nn.GRUCell, 8, 6, on=(X, T("batch", 6))),
    _row(nn.GRUCell, 8, 6, {"bias": False}, on=X, name="without_bias"),
)

TRANSFORMERS = (
    _row(nn.MultiheadAttention, 8, 2, {"batch_first": True}, on=(SEQUENCE, SEQUENCE, SEQUENCE)),
    _row(
        nn.MultiheadAttention,
        8,
        2,
        on=(T("queries", "batch", 8), T("keys", "batch", 8), T("keys", "batch", 8)),
        name="of_keys",
    ),
    _row(nn.TransformerEncoderLayer, 8, 2, 16, {"activation": "gelu", "norm_first": True}, on=T("time", "batch", 8)),
    _row(nn.TransformerDecoderLayer, 8, 2, 16, {"batch_first": True}, on=(T("batch", "queries", 8), SEQUENCE)),
    Row(
        "TransformerEncoder",
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, nn.LayerNorm(8)),
        (SEQUENCE,),
    ),
    Row(
        "TransformerDecoder",
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 1),
        (T("queries", "batch", 8), T("time", "batch", 8)),
    ),
    _row(nn.Transformer, 8, 2, 1, 1, 16, on=(T("time", "batch", 8), T("queries", "batch", 8))),
)
