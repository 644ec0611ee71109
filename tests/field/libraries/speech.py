"""Features, recognizers and vocoders of speech, with few layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..row import Calls, Model, make, models, randn
from ..samples import voice

_BATCH = {0: "batch"}
_SAMPLES = {0: "batch", 1: "samples"}
_FRAMES = {0: "batch", 1: "frames"}


def _sounds() -> Calls:
    return [(voice(1, 8000),), (voice(2, 9999),), (voice(1, 4001),)]


def _lines() -> Calls:
    """Sounds with one channel, of at least 0.4 s."""
    return [(voice(b, n)[:, None],) for b, n in ((1, 8000), (2, 9999), (1, 7001))]


def _features(width: int) -> Calls:
    return [(randn(b, t, width),) for b, t in ((1, 40), (3, 71), (2, 25))]


def _with_counts(calls: Calls) -> Calls:
    """The number of frames of each sound."""
    return [(x, torch.linspace(x.shape[1], x.shape[1] // 2, x.shape[0]).long()) for (x,) in calls]


def _transform(name: str, inputs: Callable[[], Calls] = _sounds, dims: Any = _SAMPLES, **options: Any) -> Model:
    return Model(make(f"torchaudio.transforms.{name}", **options), inputs(), (dims,))


def _torchaudio(name: str, calls: Calls, *dims: Any, **options: Any) -> Model:
    return Model(make(f"torchaudio.models.{name}", **options), calls, dims)


def _wav2vec2() -> Model:
    model = make(
        "torchaudio.models.wav2vec2_model",
        **{"extractor_mode": "group_norm", "extractor_conv_layer_config": [(16, 10, 5), (16, 3, 2), (16, 3, 2)]},
        **{"extractor_conv_bias": False, "encoder_embed_dim": 32, "encoder_projection_dropout": 0.0},
        **{
            "encoder_pos_conv_kernel": 15,
            "encoder_pos_conv_groups": 4,
            "encoder_num_layers": 2,
            "encoder_num_heads": 2,
        },
        **{"encoder_attention_dropout": 0.0, "encoder_ff_interm_features": 32, "encoder_ff_interm_dropout": 0.0},
        **{"encoder_dropout": 0.0, "encoder_layer_norm_first": False, "encoder_layer_drop": 0.0, "aux_num_out": 29},
    )
    calls = [(x, torch.linspace(x.shape[1], x.shape[1] // 2, x.shape[0]).long()) for (x,) in _sounds()]
    return Model(model, calls, (_SAMPLES, _BATCH))


def _pictures_of_sound() -> Calls:
    return [(randn(b, 201, t).abs(),) for b, t in ((1, 30), (2, 47), (3, 11))]


TORCHAUDIO = models(
    "torchaudio",
    {
        "AmplitudeToDB": partial(_transform, "AmplitudeToDB", _pictures_of_sound, {0: "batch", 2: "frames"}, top_db=80.0),
        "ComputeDeltas": partial(_transform, "ComputeDeltas", _pictures_of_sound, {0: "batch", 2: "frames"}),
        "Conformer": lambda: _torchaudio(
            "Conformer", _with_counts(_features(16)), _FRAMES, _BATCH, input_dim=16, num_heads=2, ffn_dim=32, num_layers=1,
            depthwise_conv_kernel_size=7,
        ),
        "ConvTasNet": lambda: _torchaudio(
            "ConvTasNet", _lines(), {0: "batch", 2: "samples"}, enc_num_feats=32, msk_num_feats=16, msk_num_hidden_feats=16, msk_num_layers=2,
            msk_num_stacks=1,
        ),
        "DeepSpeech": lambda: _torchaudio(
            "DeepSpeech", [(x[:, None],) for (x,) in _features(20)], {0: "batch", 2: "frames"}, n_feature=20, n_hidden=32, n_class=29
        ),
        "Emformer": lambda: _torchaudio(
            "Emformer", _with_counts([(randn(b, t, 16),) for b, t in ((1, 36), (3, 52), (2, 20))]), _FRAMES, _BATCH, input_dim=16, num_heads=2,
            ffn_dim=32, num_layers=1, segment_length=8, right_context_length=4, left_context_length=8,
        ),
        "GriffinLim": lambda: _transform(
            "GriffinLim", _pictures_of_sound, {0: "batch", 2: "frames"}, n_fft=400, n_iter=2, rand_init=False, momentum=0.5
        ),
        "LFCC": partial(_transform, "LFCC", n_lfcc=13, speckwargs={"n_fft": 256}),
        "MelSpectrogram": partial(_transform, "MelSpectrogram", n_fft=400, n_mels=40),
        "MFCC": partial(_transform, "MFCC", n_mfcc=13, melkwargs={"n_mels": 40}),
        "MuLawEncoding": partial(_transform, "MuLawEncoding"),
        "PitchShift": partial(_transform, "PitchShift", sample_rate=16000, n_steps=2),
        "Resample": partial(_transform, "Resample", orig_freq=16000, new_freq=22050),
        "SlidingWindowCmn": lambda: _transform("SlidingWindowCmn", lambda: _features(16), _FRAMES, cmn_window=11, center=True),
        "SpectralCentroid": partial(_transform, "SpectralCentroid", sample_rate=16000),
        "Spectrogram": partial(_transform, "Spectrogram", power=None),
        "SquimObjective": lambda: _torchaudio(
            "squim_objective_model", _sounds(), _SAMPLES, feat_dim=32, win_len=64, d_model=32, nhead=2, hidden_dim=16, num_blocks=1,
            rnn_type="LSTM", chunk_size=31,
        ),
        "Wav2Letter": lambda: _torchaudio("Wav2Letter", [(x[:, None],) for (x,) in _sounds()], {0: "batch", 2: "samples"}, num_classes=29),
        "Wav2Vec2": _wav2vec2,
        "WaveRNN": lambda: _torchaudio(
            "WaveRNN", [(voice(b, (t - 4) * 20)[:, None], randn(b, 1, 20, t)) for b, t in ((1, 10), (2, 14), (3, 7))],
            {0: "batch", 2: "samples"}, {0: "batch", 3: "frames"}, upsample_scales=[5, 4], n_classes=16, hop_length=20, n_res_block=1, n_rnn=16,
            n_fc=16, n_freq=20, n_hidden=16, n_output=16,
        ),
    },
)  # fmt: skip
