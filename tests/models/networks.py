"""Networks of the PyTorch examples and tutorials, written for the zoo."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

__all__ = [
    "DCGANDiscriminator",
    "DCGANGenerator",
    "MLPModel",
    "RNNModel",
    "SimpleAddModel",
    "SuperResolution",
    "TransformerModel",
]


class DCGANGenerator(nn.Module):
    """Noise (N, latent, 1, 1) to images (N, 3, 64, 64)."""

    def __init__(self, latent: int = 100, features: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = latent
        for index, factor in enumerate((8, 4, 2, 1)):
            stride, padding = (1, 0) if index == 0 else (2, 1)
            layers += [
                nn.ConvTranspose2d(channels, features * factor, 4, stride, padding, bias=False),
                nn.BatchNorm2d(features * factor),
                nn.ReLU(inplace=True),
            ]
            channels = features * factor
        self.main = nn.Sequential(*layers, nn.ConvTranspose2d(channels, 3, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, noise: Tensor) -> Tensor:
        return self.main(noise)


class DCGANDiscriminator(nn.Module):
    """Images (N, 3, 64, 64) to probabilities (N,)."""

    def __init__(self, features: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, features, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
        for factor in (2, 4, 8):
            layers += [
                nn.Conv2d(features * factor // 2, features * factor, 4, 2, 1, bias=False),
                nn.BatchNorm2d(features * factor),
                nn.LeakyReLU(0.2, inplace=True),
            ]
        self.main = nn.Sequential(*layers, nn.Conv2d(features * 8, 1, 4, 1, 0, bias=False), nn.Sigmoid())

    def forward(self, images: Tensor) -> Tensor:
        return self.main(images).view(-1, 1).squeeze(1)


class SuperResolution(nn.Module):
    """Luminance (N, 1, H, W) to (N, 1, factor * H, factor * W)."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(1, 64, 5, padding=2)
        self.conv2 = nn.Conv2d(64, 64, 3, padding=1)
        self.conv3 = nn.Conv2d(64, 32, 3, padding=1)
        self.conv4 = nn.Conv2d(32, upscale_factor**2, 3, padding=1)
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        x = self.relu(self.conv3(x))
        return self.pixel_shuffle(self.conv4(x))


class RNNModel(nn.Module):
    """The recurrent word language model: tokens (T, N) and a hidden state to log-probabilities (T * N, tokens)."""

    def __init__(
        self,
        kind: Literal["LSTM", "GRU", "RNN_TANH", "RNN_RELU"],
        tokens: int = 50,
        width: int = 16,
        layers: int = 2,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(tokens, width)
        if kind.startswith("RNN"):
            nonlinearity = kind.removeprefix("RNN_").lower()
            self.rnn: nn.Module = nn.RNN(width, width, layers, nonlinearity=nonlinearity, dropout=dropout)
        else:
            self.rnn = getattr(nn, kind)(width, width, layers, dropout=dropout)
        self.decoder = nn.Linear(width, tokens)

    def forward(
        self, input: Tensor, hidden: Tensor | tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor]]:
        embedded = self.drop(self.encoder(input))
        output, hidden = self.rnn(embedded, hidden)
        decoded = self.decoder(self.drop(output)).view(-1, self.tokens)
        return nn.functional.log_softmax(decoded, dim=1), hidden


class PositionalEncoding(nn.Module):
    """Sinusoidal position embeddings added to (T, N, width)."""

    def __init__(self, width: int, dropout: float, length: int = 5000) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(length, dtype=torch.float).unsqueeze(1)
        frequency = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
        table = torch.zeros(length, width)
        table[:, 0::2] = torch.sin(position * frequency)
        table[:, 1::2] = torch.cos(position * frequency)
        self.register_buffer("pe", table.unsqueeze(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.pe[: x.size(0)])


class TransformerModel(nn.Module):
    """The transformer word language model: tokens (T, N) to log-probabilities (T, N, tokens)."""

    def __init__(
        self, tokens: int = 50, width: int = 32, heads: int = 4, hidden: int = 48, layers: int = 2, dropout: float = 0.2
    ) -> None:
        super().__init__()
        self.width = width
        self.pos_encoder = PositionalEncoding(width, dropout)
        self.input_emb = nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, tokens)

    def forward(self, src: Tensor) -> Tensor:
        length = src.size(0)
        mask = torch.log(torch.tril(torch.ones(length, length, device=src.device)))
        embedded = self.pos_encoder(self.input_emb(src) * math.sqrt(self.width))
        # Without is_causal, torch reads the values of the mask to detect it, which cannot be captured.
        encoded = self.encoder(embedded, mask=mask, is_causal=False)
        return nn.functional.log_softmax(self.decoder(encoded), dim=-1)


class MLPModel(nn.Module):
    """The documentation's multilayer perceptron: one tensor (N, 8), one in a dict, one in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.fc0 = nn.Linear(8, 8)
        self.fc1 = nn.Linear(8, 4)
        self.fc2 = nn.Linear(4, 2)
        self.fc3 = nn.Linear(2, 2)
        self.fc_combined = nn.Linear(8 + 8 + 8, 8)

    def forward(self, tensor_x: Tensor, input_dict: dict[str, Tensor], input_list: list[Tensor]) -> Tensor:
        combined = torch.cat([tensor_x, input_dict["tensor_x"], input_list[0]], dim=1)
        combined = torch.sigmoid(self.fc_combined(combined))
        combined = torch.sigmoid(self.fc0(combined))
        combined = torch.sigmoid(self.fc1(combined))
        combined = torch.sigmoid(self.fc2(combined))
        return self.fc3(combined)


class SimpleAddModel(nn.Module):
    """The documentation's smallest model."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.add(x, y)
