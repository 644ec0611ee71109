"""The model zoo: every model with random weights under a fixed seed, in eval mode, at the smallest sensible size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from . import networks
from .torchvision_shim import import_torchvision

__all__ = ["CASES", "Case", "Example", "Inputs", "without_zeros"]

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""

Example = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
"""A model and the arguments of one call."""


@dataclass(frozen=True)
class Case:
    """One model of the zoo.

    Attributes:
        name: Unique name, the test id.
        build: Builds the model and its example inputs.
        dynamic_shapes: The model's natural dynamic dims, as for ``fxonnx.export``.
        second: Creates inputs in which every dynamic dim has another size.
        tolerance: Maximum error against eager, relative to the largest magnitude of the output.
        input_names: ``input_names`` of the export, None for torch's names.
        output_names: ``output_names`` of the export, None for torch's names.
        marks: pytest marks of the case's tests.
    """

    name: str
    build: Callable[[], Example]
    dynamic_shapes: Any
    second: Callable[[], Inputs]
    tolerance: float = 1e-4
    input_names: tuple[str, ...] | None = None
    output_names: tuple[str, ...] | None = None
    marks: tuple[pytest.MarkDecorator, ...] = ()

    def example(self) -> Example:
        """The model in eval mode and its example inputs, identical on every call."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            model, args, kwargs = self.build()
            model.eval()
            if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
                # Statistics of small images need more of them.
                count = 8 if args[0][0].numel() < 100_000 else 2
                _calibrate(model, *(torch.randn(count, *images.shape[1:]) for images in args), **kwargs)
            return model, args, kwargs

    def second_inputs(self) -> Inputs:
        """The inputs of the second size, identical on every call."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(1)
            return self.second()


def _calibrate(model: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Set batch norm statistics to those of their inputs, so that outputs depend on inputs as in a trained network.

    Fresh batch norms are the identity: folding them would not be tested, and deep networks would lose the signal.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.8, 1.2)
        nn.init.normal_(norm.bias, std=0.1)
        norm.train().momentum = 1.0
    with torch.no_grad():
        model(*args, **kwargs)
    for norm in norms:
        norm.eval().momentum = 0.1
        norm.num_batches_tracked.zero_()


# ---- torchvision

BATCH = ({0: "batch"},)
IMAGES = ({0: "batch", 2: "height", 3: "width"},)


def _torchvision(name: str, size: int, batch: int = 2, **options: Any) -> Example:
    model = getattr(import_torchvision().models, name)(weights=None, **options)
    return without_zeros(model), (torch.randn(batch, 3, size, size),), {}


def without_zeros(model: nn.Module) -> nn.Module:
    """Initialize weights that are zero: a head of zeros would hide every error before it."""
    for parameter in model.parameters():
        if not parameter.any() and parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.1)
    return model


def _images(batch: int, height: int, width: int, channels: int = 3) -> Inputs:
    return (torch.randn(batch, channels, height, width),), {}


def _batched(name: str, size: int, tolerance: float = 1e-4, **options: Any) -> Case:
    """A torchvision model with a dynamic batch."""
    return Case(
        name,
        partial(_torchvision, name, size, **options),
        dynamic_shapes=BATCH,
        second=partial(_images, 3, size, size),
        tolerance=tolerance,
    )


def _fully_convolutional(name: str, size: int, **options: Any) -> Case:
    """A torchvision model with a dynamic batch, height and width."""
    return Case(
        name,
        partial(_torchvision, name, size, **options),
        dynamic_shapes=IMAGES,
        second=partial(_images, 3, size + 32, size + 64),
    )


# ---- the PyTorch examples and tutorials


def _single(network: Callable[[], nn.Module], *shape: int) -> Example:
    return network(), (torch.randn(*shape),), {}


def _tensor(*shape: int) -> Inputs:
    return (torch.randn(*shape),), {}


RecurrentKind = Literal["LSTM", "GRU", "RNN_TANH", "RNN_RELU"]


def _tokens(length: int, batch: int) -> Tensor:
    return torch.randint(0, 50, (length, batch))


def _language_inputs(kind: RecurrentKind, length: int, batch: int) -> Inputs:
    hidden: Any = torch.randn(2, batch, 16)
    if kind == "LSTM":
        hidden = (hidden, torch.randn(2, batch, 16))
    return (_tokens(length, batch), hidden), {}


def _language_model(kind: RecurrentKind) -> Case:
    hidden: Any = {1: "batch"}
    return Case(
        f"word_language_model_{kind.lower()}",
        lambda: (networks.RNNModel(kind), *_language_inputs(kind, 7, 3)),
        dynamic_shapes=({0: "sequence", 1: "batch"}, (hidden, hidden) if kind == "LSTM" else hidden),
        second=partial(_language_inputs, kind, 5, 4),
    )


def _mlp() -> nn.Module:
    model = networks.MLPModel()
    for layer in model.children():
        # Inputs lie in [0, 1]; with the default range, a chain of sigmoids is as good as constant.
        nn.init.normal_(layer.weight, std=3.0)
        layer.bias.data = -layer.weight.data.sum(dim=1) / 2
    return model


def _mlp_inputs(batch: int) -> Inputs:
    return (torch.rand(batch, 8), {"tensor_x": torch.rand(batch, 8)}, [torch.rand(batch, 8)]), {}


def _lstm_inputs(length: int) -> Inputs:
    return (torch.randn(length, 3, 10), (torch.randn(8, 3, 20), torch.randn(8, 3, 20))), {}


# ---- transformers


def _bert() -> nn.Module:
    import_torchvision()
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig())


def _bert_inputs(batch: int, length: int, *, mask: bool) -> Inputs:
    kwargs = {"input_ids": torch.randint(0, 30522, (batch, length))}
    if mask:
        kwargs["attention_mask"] = torch.ones(batch, length, dtype=torch.int64)
        kwargs["attention_mask"][-1, length // 2 :] = 0
    return (), kwargs


def _llama() -> nn.Module:
    import_torchvision()
    from transformers import LlamaConfig, LlamaModel

    return LlamaModel(
        LlamaConfig(
            vocab_size=1000,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=16,
            num_attention_heads=8,
            use_cache=False,
        )
    )


def _llama_inputs(batch: int, length: int) -> Inputs:
    return (), {"input_ids": torch.randint(0, 1000, (batch, length))}


TEXT: Mapping[int, str] = {0: "batch", 1: "sequence"}

CASES: tuple[Case, ...] = (
    _batched("alexnet", 64),
    _batched("densenet121", 64),
    # Not a multiple of anything, and the smallest size that survives all of Inception's unpadded layers.
    _batched("inception_v3", 75, tolerance=1e-3, init_weights=False),
    _fully_convolutional("resnet18", 64),
    _batched("resnet50", 64),
    _fully_convolutional("squeezenet1_1", 64),
    _batched("vgg11", 32),
    _fully_convolutional("mobilenet_v2", 64),
    _batched("vit_b_16", 32, image_size=32),
    _batched("swin_t", 64),
    _fully_convolutional("convnext_tiny", 64),
    _fully_convolutional("efficientnet_b0", 64),
    Case(
        "dcgan_generator",
        partial(_single, networks.DCGANGenerator, 2, 100, 1, 1),
        dynamic_shapes=BATCH,
        second=partial(_tensor, 3, 100, 1, 1),
    ),
    Case(
        "dcgan_discriminator",
        partial(_single, networks.DCGANDiscriminator, 2, 3, 64, 64),
        dynamic_shapes=BATCH,
        second=partial(_images, 3, 64, 64),
    ),
    Case(
        "super_resolution",
        partial(_single, partial(networks.SuperResolution, upscale_factor=3), 1, 1, 24, 24),
        dynamic_shapes=IMAGES,
        second=partial(_images, 2, 20, 31, channels=1),
        input_names=("input",),
        output_names=("output",),
    ),
    _language_model("RNN_TANH"),
    _language_model("RNN_RELU"),
    _language_model("LSTM"),
    _language_model("GRU"),
    Case(
        "word_language_model_transformer",
        lambda: (networks.TransformerModel(), (_tokens(7, 3),), {}),
        dynamic_shapes=({0: "sequence", 1: "batch"},),
        second=lambda: ((_tokens(5, 4),), {}),
    ),
    Case(
        "mlp",
        lambda: (_mlp(), *_mlp_inputs(97)),
        dynamic_shapes=({0: "batch_size"}, {"tensor_x": {0: "batch_size"}}, [{0: "batch_size"}]),
        second=partial(_mlp_inputs, 5),
        input_names=("tensor_input", "tensor_x", "list_input_index_0"),
        output_names=("output",),
    ),
    Case(
        "simple_add",
        lambda: (networks.SimpleAddModel(), (torch.randn(2, 3), torch.randn(2, 3)), {}),
        dynamic_shapes=({0: "batch"}, {0: "batch"}),
        second=lambda: ((torch.randn(4, 3), torch.randn(4, 3)), {}),
    ),
    Case(
        "bidirectional_lstm",
        lambda: (nn.LSTM(10, 20, num_layers=4, bidirectional=True), *_lstm_inputs(5)),
        dynamic_shapes=({0: "sequence"}, (None, None)),
        second=partial(_lstm_inputs, 9),
        input_names=("input", "h0", "c0"),
        output_names=("output", "hn", "cn"),
    ),
    Case(
        "bert_base",
        lambda: (_bert(), *_bert_inputs(2, 16, mask=False)),
        dynamic_shapes={"input_ids": TEXT},
        second=partial(_bert_inputs, 3, 11, mask=False),
    ),
    Case(
        "bert_base_masked",
        lambda: (_bert(), *_bert_inputs(2, 16, mask=True)),
        dynamic_shapes={"input_ids": TEXT, "attention_mask": TEXT},
        second=partial(_bert_inputs, 3, 11, mask=True),
    ),
    Case(
        "llama_16_layers",
        lambda: (_llama(), *_llama_inputs(2, 16)),
        dynamic_shapes={"input_ids": TEXT},
        second=partial(_llama_inputs, 3, 11),
    ),
)
