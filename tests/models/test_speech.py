"""Speech models whose output length is predicted: FastSpeech2Conformer."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxonnx

from ..saved import run_from_file
from .torchvision_shim import import_torchvision


@pytest.fixture
def modeling() -> ModuleType:
    pytest.importorskip("transformers")
    import_torchvision()
    import transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer as modeling

    return modeling


class Regulated(nn.Module):
    """The length regulator with the durations after the call, which it changes if all of them are 0."""

    def __init__(self, modeling: ModuleType, speed: float) -> None:
        super().__init__()
        self.modeling, self.speed = modeling, speed

    def forward(self, x: Tensor, durations: Tensor) -> Any:
        durations = durations.clone()
        return self.modeling.length_regulator(x, durations, self.speed), durations


@pytest.mark.parametrize("speed", [1.0, 1.7])
@pytest.mark.parametrize("opset", [13, 18, 20])
def test_length_regulator(modeling: ModuleType, opset: int, speed: float) -> None:
    model = Regulated(modeling, speed).eval()
    examples = [
        (torch.randn(len(rows), len(rows[0]), 2), torch.tensor(rows))
        for rows in (
            [[1, 3, 0, 2], [2, 0, 1, 0]],
            [[0, 0, 5], [0, 0, 0], [1, 1, 1]],
            [[0, 0], [0, 0]],
            [[0]],
            [[1]],
        )
    ]
    shapes = ({0: "n", 1: "t"}, {0: "n", 1: "t"})
    program = fxonnx.export(model, examples[0], dynamic_shapes=shapes, opset_version=opset)
    for args in examples:
        for ours, theirs in zip(program(*args), model(*args), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_length_regulator_rejects_a_speed_of_0(modeling: ModuleType) -> None:
    with pytest.raises(fxonnx.CaptureError, match="`speaking_speed` must be greater than 0"):
        fxonnx.export(Regulated(modeling, 0.0).eval(), (torch.randn(1, 2, 2), torch.tensor([[1, 2]])))


class Spectrogram(nn.Module):
    """The tensors that the model returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Any:
        outputs = self.model(tokens, return_dict=True)
        return outputs.spectrogram, outputs.duration_outputs, outputs.pitch_outputs


def test_fastspeech2_conformer(modeling: ModuleType) -> None:
    torch.manual_seed(0)
    from transformers import FastSpeech2ConformerConfig

    sizes = {
        f"{part}_{name}": value
        for part, names in {
            "encoder": {"layers": 1, "num_attention_heads": 2, "linear_units": 16},
            "decoder": {"layers": 1, "num_attention_heads": 2, "linear_units": 16},
            "duration_predictor": {"channels": 8, "layers": 1},
            "energy_predictor": {"channels": 8, "layers": 1},
            "pitch_predictor": {"channels": 8, "layers": 1},
            "speech_decoder_postnet": {"units": 8, "layers": 2},
        }.items()
        for name, value in names.items()
    }
    config = FastSpeech2ConformerConfig(vocab_size=20, hidden_size=16, num_mel_bins=8, **sizes)
    model = Spectrogram(modeling.FastSpeech2ConformerModel(config).eval())
    # Durations of a few frames: an untrained predictor returns almost none.
    nn.init.constant_(model.model.duration_predictor.linear.bias, 1.2)
    tokens = torch.randint(1, 19, (2, 7))
    program = fxonnx.export(model.eval(), (tokens,), dynamic_shapes=({0: "n", 1: "t"},))
    lengths = set()
    for args in (tokens, torch.randint(1, 19, (3, 5)), torch.randint(1, 19, (1, 11))):
        with torch.no_grad():
            expected = model(args)
        lengths.add(expected[0].shape[1])
        for ours, theirs in zip(program(args), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert len(lengths) > 1


@pytest.mark.parametrize("is_stochastic", [True, False], ids=["stochastic-durations", "plain-durations"])
@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
def test_vits(modeling: ModuleType, is_stochastic: bool) -> None:
    from transformers import VitsConfig, VitsModel

    torch.manual_seed(0)
    names = ("hidden_size", "ffn_dim", "flow_size", "upsample_initial_channel", "duration_predictor_filter_channels")
    layers = ("num_hidden_layers", "depth_separable_num_layers")
    nets = ("prior_encoder_num_wavenet_layers", "posterior_encoder_num_wavenet_layers")
    config = VitsConfig(
        vocab_size=20,
        spectrogram_bins=9,
        upsample_rates=[4, 2],
        upsample_kernel_sizes=[8, 4],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
        duration_predictor_num_flows=2,
        prior_encoder_num_flows=2,
        use_stochastic_duration_prediction=is_stochastic,
        # The sampled values are multiplied by the scales, so that outputs can be compared.
        noise_scale=0.0,
        noise_scale_duration=0.0,
        **dict.fromkeys(names, 16),
        **dict.fromkeys((*layers, *nets), 1),
    )
    model = VitsModel(config).eval()
    for parameter in model.parameters():
        # Some layers begin at 0.
        if not parameter.any():
            nn.init.normal_(parameter, std=0.3)

    def inputs(batch: int, length: int, padding: int) -> dict[str, Tensor]:
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[-1, length - padding :] = 0
        return {"input_ids": torch.randint(1, 20, (batch, length)), "attention_mask": mask}

    tokens = {0: "batch", 1: "tokens"}
    program = fxonnx.export(
        model, kwargs=inputs(2, 9, 0), dynamic_shapes={"input_ids": tokens, "attention_mask": tokens}
    )
    run_from_file(program)
    lengths = set()
    # At least 6 tokens: the window of the relative positions is 4 to each side.
    for batch, length, padding in ((2, 9, 0), (3, 7, 3), (1, 13, 0)):
        given = inputs(batch, length, padding)
        with torch.no_grad():
            expected = model(**given).to_tuple()
        lengths.add(expected[0].shape[1])
        for ours, theirs in zip(program(**given), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert len(lengths) == 3


@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
def test_moonshine(modeling: ModuleType) -> None:
    from transformers import MoonshineConfig, MoonshineForConditionalGeneration

    torch.manual_seed(0)
    sizes = {
        f"{part}_{name}": value
        for part in ("encoder", "decoder")
        for name, value in {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4}.items()
    }
    config = MoonshineConfig(vocab_size=50, hidden_size=32, intermediate_size=64, max_position_embeddings=64, **sizes)
    model = MoonshineForConditionalGeneration(config).eval()

    def inputs(batch: int, samples: int, length: int) -> dict[str, Any]:
        tokens = torch.randint(3, 50, (batch, length))
        return {"input_values": torch.randn(batch, samples), "decoder_input_ids": tokens, "use_cache": False}

    shapes = {
        "input_values": {0: "batch", 1: "samples"},
        "decoder_input_ids": {0: "batch", 1: "tokens"},
        "use_cache": None,
    }
    program = fxonnx.export(model, kwargs=inputs(2, 2000, 5), dynamic_shapes=shapes)
    run_from_file(program)
    # The convolutions need 895 samples.
    for given in (inputs(2, 2000, 5), inputs(3, 3001, 7), inputs(1, 895, 1)):
        with torch.no_grad():
            expected = model(**given).to_tuple()
        for ours, theirs in zip(program(**given), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
