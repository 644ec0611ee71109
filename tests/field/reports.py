"""Programs of public bug reports about exports to ONNX, written anew; they need no library.

``ISSUES`` has the reports that show a construct, where there is one to name.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from .row import Calls, Model, Row, rand, randint, randn

__all__ = ["ISSUES", "REPORTS"]


def _at(*values: int) -> Calls:
    """A matrix with each of some values as a tensor."""
    return [(randn(4, 12), torch.tensor(value)) for value in values]


def _at_one(*values: int) -> Calls:
    return [(randn(4, 12), torch.tensor([value])) for value in values]


class ClearTail(nn.Module):
    def forward(self, signal: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        kept = signal.clone()
        kept[:, start:] = 0.0
        return kept


class RaiseHead(nn.Module):
    def forward(self, signal: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        raised = signal.clone()
        raised[:, :end] += 1
        return raised


class ReadTail(nn.Module):
    def forward(self, signal: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return signal[:, start:] * 2


class Window(nn.Module):
    def forward(self, signal: torch.Tensor, middle: torch.Tensor) -> torch.Tensor:
        return signal[:, middle - 1 : middle + 2].sum(-1)


class TailMask(nn.Module):
    def forward(self, signal: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        mask = signal.new_ones(signal.shape[1])
        mask[last + 1 :] = 0
        return signal * mask


class LengthMasks(nn.Module):
    def forward(self, signal: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(signal)
        for number, length in enumerate(lengths):
            mask[number, length:] = 0
        return signal * mask


class HeadUpToTheLongest(nn.Module):
    def forward(self, signal: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros_like(signal)
        mask[:, : lengths.max()] = 1
        return signal * mask


class CacheWrite(nn.Module):
    def forward(self, new: torch.Tensor, cache: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        written = cache.clone()
        written[:, position : position + new.shape[1]] = new
        return written


class CellsOfAShape(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape.numel() == 0:
            return x
        return x.reshape(x.shape[:2].numel(), -1) * 2


class SquareGrid(nn.Module):
    """Patches without the class token, as a square."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        side = int((tokens.shape[1] - 1) ** 0.5)
        return tokens[:, 1:].reshape(tokens.shape[0], side, side, 3).sum(2)


class ClassesOfASize(nn.Module):
    def forward(self, values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return F.one_hot(index, num_classes=values.shape[1]).float() @ values[..., None]


class ScaleOfTheSmallerSide(nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        size = max(1, round(min(image.shape[-2:]) / 32))
        return F.avg_pool2d(image, kernel_size=size)


class SameLength(nn.Module):
    """A sound through a spectrogram and back, to its length."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(sound, 64, 16, window=self.window, return_complex=True)
        return torch.istft(spectrum / 2, 64, 16, window=self.window, length=sound.shape[-1])


class HalfSize(nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        height, width = image.shape[-2] // 2, image.shape[-1] // 2
        return F.adaptive_avg_pool2d(image, (height, width)) + F.adaptive_max_pool2d(image, (height, width))


class Windows(nn.Module):
    """The windows of image restoration, with their number computed back from the tokens."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = image.shape
        padded = F.pad(image, (0, -width % 4, 0, -height % 4), mode="reflect")
        high, wide = padded.shape[2:]
        cut = padded.reshape(batch, channels, high // 4, 4, wide // 4, 4).permute(0, 2, 4, 3, 5, 1)
        tokens = cut.reshape(-1, 16, channels).softmax(1)
        count = int(tokens.shape[0] / (high * wide / 4 / 4))
        joined = tokens.view(count, high // 4, wide // 4, 4, 4, -1).permute(0, 5, 1, 3, 2, 4)
        return joined.reshape(count, channels, high, wide)[..., :height, :width]


class BranchOnASize(nn.Module):
    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        return sound * 2 if sound.shape[1] > 40 else sound + 1


class Chunks(nn.Module):
    def forward(self, points: torch.Tensor) -> torch.Tensor:
        nearest = []
        for start in range(0, len(points), 32):
            distances = torch.cdist(points[start : start + 32], points)
            nearest.append(distances.topk(3, largest=False).values)
        return torch.cat(nearest)


class ShrinkingWindows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[: x.shape[0] - number].cumsum(0) for number in range(3)])


class Squeezed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.squeeze(x).dim() == 1:
            x = x.unsqueeze(0)
        return x.mean(-1)


class Sensitivity(nn.Module):
    """Gradients of one class of each picture."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            image = image.detach().requires_grad_(True)
            scores = self.layer(image).relu().mean((2, 3))[:, 1]
            return torch.autograd.grad(torch.unbind(scores), image)[0].abs()


class GradientOfTensordot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(randn(4, 2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            energy = torch.tensordot(x, self.weight, dims=((1, 2), (1, 0))).square().sum()
            return torch.autograd.grad(energy, x)[0]


class Headwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(randn(4, 2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("...hd,hod->...ho", x.unflatten(-1, (4, 2)), self.weight).flatten(-2)


class HalfMask(nn.Module):
    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (scores + (1 - mask) * -1e9).softmax(-1)


class BeyondHalf(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x / 1e5, x * 1e-9, x * torch.tensor(1e5), F.softplus(x, beta=1e5)


class PaddedEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        encoded: torch.Tensor = self.encoder(x, src_key_padding_mask=padding)
        return encoded.masked_fill(padding[..., None], 0.0)


class UnusedSparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("pairs", torch.eye(3).to_sparse(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class SparseConstant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.links = torch.sparse_coo_tensor([[0, 1], [2, 0]], [1.0, 2.0], (3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.links.to_dense() @ x + torch.sparse.mm(self.links, x)


def _reloaded(module: torch.jit.ScriptModule) -> nn.Module:
    data = io.BytesIO()
    torch.jit.save(module, data)
    data.seek(0)
    loaded: nn.Module = torch.jit.load(data)
    return loaded


def _script() -> Model:
    module = _reloaded(torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()))
    return Model(module, _BATCHES, ({0: "batch"},))


def _trace() -> Model:
    return Model(_reloaded(torch.jit.trace(nn.Linear(4, 3).eval(), rand(2, 4))), _BATCHES, ({0: "batch"},))


def _frozen() -> Model:
    return Model(torch.jit.freeze(torch.jit.script(nn.Linear(4, 3).eval())), _BATCHES, ({0: "batch"},))


_BATCHES: Calls = [(rand(2, 4),), (rand(5, 4),), (rand(1, 4),)]
_LENGTHS: Calls = [(randn(4, 12), torch.tensor(each)) for each in ([3, 12, 7, 1], [12, 1, 2, 5], [4, 4, 2, 3])]
_PADDING = [torch.arange(5)[None] >= torch.tensor([[5], [length]]) for length in (3, 1)]
_HALF: Calls = [
    (randn(2, 4).half(), mask.half()) for mask in (torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]]), torch.ones(2, 4))
]

_IMAGE = {0: "batch", 2: "h", 3: "w"}
_TABLE: tuple[tuple[str, str, Callable[[], Model]], ...] = (
    ("pytorch#104314", "a write from a bound that is a tensor", lambda: Model(ClearTail(), _at(6, 3, 0))),
    ("pytorch#104314", "an update up to a bound of one element", lambda: Model(RaiseHead(), _at_one(6, 3, 12))),
    ("", "a read from a bound of one element", lambda: Model(ReadTail(), _at_one(6, 3, 11))),
    ("", "a window around a position of one element", lambda: Model(Window(), _at_one(6, 3, 10))),
    ("", "a mask after a position", lambda: Model(TailMask(), _at(6, 3, 11))),
    ("", "a mask for each length, in a loop", lambda: Model(LengthMasks(), _LENGTHS)),
    ("", "a mask up to the longest length", lambda: Model(HeadUpToTheLongest(), _LENGTHS)),
    (
        *("", "a write into a cache at a position"),
        lambda: Model(
            CacheWrite(),
            [(randn(1, t, 4), randn(1, 9, 4, seed=1), torch.tensor(p)) for t, p in ((2, 3), (3, 5), (1, 0))],
            ({1: "tokens"}, {}, {}),
        ),
    ),
    ("", "the elements of a part of a shape", lambda: Model(CellsOfAShape(), [(rand(n, 3, 4),) for n in (2, 5, 1)], ({0: "n"},))),
    ("", "the root of a number of tokens", lambda: Model(SquareGrid(), [(rand(2, n, 3),) for n in (10, 17, 5)], ({1: "tokens"},))),
    (
        *("", "as many classes as a size"),
        lambda: Model(ClassesOfASize(), [(rand(2, n), randint(n, 2, 5)) for n in (5, 8, 3)], ({1: "n"}, {})),
    ),
    (
        *("", "a window relative to the smaller side"),
        lambda: Model(ScaleOfTheSmallerSide(), [(rand(1, 1, *size),) for size in ((64, 96), (70, 80), (130, 100))], (_IMAGE,)),
    ),
    (
        *("pytorch#65666", "an inverse transform to the length of its input"),
        lambda: Model(SameLength(), [(randn(b, n),) for b, n in ((1, 400), (1, 640), (2, 333))], ({0: "batch", 1: "n"},)),
    ),
    (
        *("", "adaptive pooling to half of a size"),
        lambda: Model(HalfSize(), [(rand(b, 3, *size),) for b, *size in ((1, 32, 32), (1, 48, 64), (2, 33, 45))], (_IMAGE,)),
    ),
    (
        *("", "the windows of image restoration"),
        lambda: Model(Windows(), [(rand(b, 3, *size),) for b, *size in ((1, 32, 32), (3, 32, 44), (2, 45, 37))], (_IMAGE,)),
    ),
    ("", "a branch on a size", lambda: Model(BranchOnASize(), [(rand(1, n),) for n in (30, 36, 50)], ({1: "n"},))),
    ("", "chunks of a loop", lambda: Model(Chunks(), [(rand(n, 3),) for n in (70, 130, 20)], ({0: "n"},))),
    ("pytorch#59870", "windows that shrink in a loop", lambda: Model(ShrinkingWindows(), [(rand(n, 3),) for n in (5, 9, 3)], ({0: "n"},))),
    ("", "a squeeze of a batch of one", lambda: Model(Squeezed(), [(rand(b, 6, 8),) for b in (1, 3, 2)], ({0: "batch"},))),
    ("", "gradients of outputs one by one", lambda: Model(Sensitivity(), [(rand(b, 3, 8, 8),) for b in (1, 3, 2)], ({0: "batch"},))),
    ("", "the gradient of tensordot", lambda: Model(GradientOfTensordot(), [(randn(n, 2, 4),) for n in (5, 3, 1)], ({0: "n"},))),
    (
        *("", "einsum with a batch of one"),
        lambda: Model(Headwise(), [(rand(b, t, 8),) for b, t in ((1, 6), (3, 9), (2, 1))], ({0: "batch", 1: "tokens"},)),
    ),
    ("", "a mask of -1e9 in half precision", lambda: Model(HalfMask(), _HALF, tolerance=5e-3)),
    (
        *("", "numbers outside of half precision"),
        lambda: Model(BeyondHalf(), [(torch.tensor(each).half(),) for each in ([0.0, 1, 0.1, 60000], [2.0, -3, 0.5, 8])], tolerance=5e-3),
    ),
    (
        *("Model-Optimizer#262, pytorch#150891, pytorch#190338", "an RMS norm without a scale in half precision"),
        lambda: Model(
            nn.RMSNorm(8, elementwise_affine=False),
            [(randn(2, 8, seed=seed).half(),) for seed in (0, 1)],
            options={"opset_version": 23},
            tolerance=5e-3,
        ),
    ),
    ("pytorch#110557, pytorch#97111", "an encoder with a padding mask", lambda: Model(PaddedEncoder(), [(randn(2, 5, 8), each) for each in _PADDING])),
    ("pytorch#35294", "a sparse buffer that nothing reads", lambda: Model(UnusedSparse(), _BATCHES, ({0: "batch"},))),
    ("pytorch#97652, torch-harmonics#73", "a sparse constant", lambda: Model(SparseConstant(), [(randn(3, n),) for n in (4, 6, 1)], ({1: "n"},))),
    ("", "a scripted model from a file", _script),
    ("", "a traced model from a file", _trace),
    ("", "a frozen scripted model", _frozen),
)  # fmt: skip

REPORTS = tuple(Row("reports", name, build) for _, name, build in _TABLE)
ISSUES = {name: issue for issue, name, _ in _TABLE}
