"""Literals, numbers, weights times constants, dtypes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .harness import T, ids, mask, ordinary

X = T("batch", 5)


@ordinary(X)
def weight_times_scalar_tensor(self, x):
    return self.scale * torch.tensor(2.0) - x


@ordinary(X)
def weight_plus_list(self, x):
    return self.scale + torch.tensor([1.0, 2, 3, 4, 5]) - x


@ordinary(X)
def weight_times_number(self, x):
    return self.scale * 2 + x * (self.scale**2).sum()


@ordinary(X)
def large_weight_times_constant(self, x):
    return x @ (self.table * torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])).t()


@ordinary(X)
def weight_softmax(self, x):
    return x * torch.softmax(self.scale / torch.tensor(0.5), 0)


@ordinary(X)
def weight_masked_by_a_constant(self, x):
    keep = torch.tensor([True, False, True, True, False])
    return x * self.scale.masked_fill(~keep, 0.0) + torch.where(keep, self.scale, torch.tensor(-1.0))


@ordinary(X)
def weight_in_two_forms(self, x):
    return x @ self.table.t() @ self.table + (self.table * 0.5).mean(0)


@ordinary(X)
def weight_normalized(self, x):
    return F.linear(x, F.normalize(self.table, dim=1) * torch.tensor(10.0))


@ordinary(X)
def buffer_plus_list(self, x):
    return self.offset + torch.tensor([1, 2, 3, 4, 5]) - x


@ordinary(X)
def buffer_times_weight(self, x):
    return x + self.offset * self.scale - torch.tensor(self.scale.shape[0])


@ordinary(X)
def buffer_at_constant_places(self, x):
    return x + self.offset[torch.tensor([4, 3, 2, 1, 0])] + self.table[[0, 3, 5]].sum(0)


@ordinary(X)
def numbers_of_python(x):
    return (x * 2 + 1) / 3 - math.pi + torch.full_like(x, 0.5) + math.sqrt(2)


@ordinary(X)
def number_first(x):
    return 1 - x, 2 / (x.abs() + 1), 2**x, 1 + (-x), 3 // (x.abs().int() + 1), 7 % (x.abs().int() + 2)


@ordinary(X)
def infinities(x):
    return torch.where(x > 0, x, float("-inf")).amax(1), x.clamp(min=float("-inf"), max=1.0), x.new_tensor(math.inf)


@ordinary(X)
def nan_to_num(x):
    return torch.nan_to_num(torch.log(x), nan=0.0, neginf=-1.0), torch.isnan(torch.sqrt(x)), torch.isfinite(1 / x)


@ordinary(X)
def factories(x):
    n = x.shape[0]
    return x + torch.zeros(5) + torch.ones(n, 1) + torch.full((n, 5), 2.5) + torch.eye(5)[0] + torch.empty(5).fill_(1)


@ordinary(X)
def factories_like_the_input(x):
    return (
        torch.zeros_like(x),
        torch.ones_like(x, dtype=torch.int64),
        x.new_zeros(3),
        x.new_full((2, 2), 7),
        x.new_ones(x.shape),
    )


@ordinary(X)
def ranges(x):
    n = x.shape[0]
    return (
        torch.arange(n),
        torch.arange(1, 6, 2),
        torch.arange(5.0) / 2,
        torch.linspace(0, 1, 5),
        torch.arange(0, 1, 0.25),
    )


@ordinary(X)
def literal_matrix(x):
    sobel = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])
    return F.conv1d(x.unsqueeze(1), sobel.unsqueeze(1))


@ordinary(T("batch", 3, 4, 4))
def mean_and_std_of_images(x):
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (x - mean[:, None, None]) / std.view(-1, 1, 1)


@ordinary(T("batch", 3, 4, 4, dtype=torch.uint8, low=0, high=256))
def bytes_to_floats(x):
    return x.float() / 255.0, x.to(torch.float32).div(255).sub(0.5).mul(2)


@ordinary(X)
def constants_of_the_class(x):
    class Settings:
        scale = 0.5
        widths = (1, 2, 3, 4, 5)

    return x * Settings.scale * torch.tensor(Settings.widths)


@ordinary(X)
def dtypes_there_and_back(x):
    return (
        x.half().float(),
        x.double().sum(),
        x.int() // 2,
        (x > 0).long() % 3,
        x.round().to(torch.uint8) * 0,
        x.bfloat16().float(),
    )


@ordinary(X)
def dtype_of_another(self, x):
    return x.type_as(self.offset), (x > 0).to(self.scale.dtype), x.long().to(x), x.to(self.offset.device)


@ordinary(X, ids("batch", 5))
def mixed_dtypes(x, i):
    return x + i, i * 0.5, i / 2, i // 2, (i > 3) * x, i + (i > 3), torch.add(i, x, alpha=2)


@ordinary(T("batch", 5, dtype=torch.float64))
def double_precision(x):
    return x.exp(), torch.erf(x) + F.gelu(x), x.float() * 2, x.softmax(-1)


@ordinary(T("batch", 5, dtype=torch.float16))
def half_precision(x):
    return x * 2 + 1, x.float().mean(-1), F.softmax(x, -1), x.clamp(-1, 1)


@ordinary(ids("batch", 5))
def integers(i):
    return i * 3 - 1, i // 4, i % 4, -i, i.abs(), i**2, i.clamp(2, 5), i.sum(1), i & 3, i | 8, i ^ 1, i << 1, i >> 1


@ordinary(mask("batch", 5), mask("batch", 5))
def logic(a, b):
    return a & b, a | b, ~a, a ^ b, a.any(1), b.all(0), a.sum(), torch.logical_xor(a, b), a.float().mean(), a != b


@ordinary(X, X)
def comparisons(x, y):
    return x == y, x != 0, x < y, x >= 1, torch.isclose(x, y), x.eq(0).any(), x.le(y).all()


@ordinary(X)
def elementwise(x):
    a = x.abs() + 0.1
    return (
        a.log() + a.sqrt() + a.rsqrt(),
        x.exp().reciprocal(),
        x.sign() * x.floor() + x.ceil() - x.trunc(),
        a.log1p().expm1(),
    )


@ordinary(X)
def trigonometry(x):
    return (
        x.sin() + x.cos(),
        x.tan(),
        x.tanh().atanh(),
        torch.atan2(x, x + 3),
        x.sinh(),
        (x / 2).asin(),
        torch.deg2rad(x * 90),
    )


@ordinary(X, X)
def minimum_and_maximum(x, y):
    return (
        torch.minimum(x, y),
        torch.maximum(x, y),
        torch.max(x, y),
        x.clamp(min=y),
        torch.lerp(x, y, 0.3),
        x.fmod(y),
        torch.hypot(x, y),
    )


@ordinary(X)
def scalar_tensors(x):
    temperature = torch.tensor(0.07).exp()
    return (
        x * temperature,
        torch.stack([x.sum(), torch.tensor(1.0)]),
        torch.tensor(3) * x,
        x.mean() + torch.tensor([1.0]),
    )


@ordinary(X)
class LearnedScalars(nn.Module):
    """Parameters and buffers without axes."""

    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.register_buffer("shift", torch.tensor(3))
        self.register_buffer("epsilon", torch.tensor(1e-6), persistent=False)

    def forward(self, x):
        return x * self.logit_scale.exp() + self.shift - 1 + self.epsilon * torch.tensor(2.0)


@ordinary(X)
class PlainTensorAttribute(nn.Module):
    """Neither parameter nor buffer."""

    def __init__(self):
        super().__init__()
        self.steps = torch.arange(100.0).reshape(20, 5)
        self.pair = (torch.tensor(1.5), torch.tensor([1, 2, 3, 4, 5]))

    def forward(self, x):
        return x + self.steps[3] * self.pair[0] - self.pair[1], x @ self.steps.t()


@ordinary(X)
class WeightStandardization(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 80)

    def forward(self, x):
        w = self.layer.weight
        w = (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + torch.tensor(1e-5))
        return F.linear(x, w, self.layer.bias * 1)


@ordinary(X)
class LowRankUpdate(nn.Module):
    """LoRA, merged in forward."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(5, 64)
        self.down = nn.Parameter(torch.randn(2, 5))
        self.up = nn.Parameter(torch.randn(64, 2))
        self.scaling = torch.tensor(0.5)

    def forward(self, x):
        return F.linear(x, self.base.weight + self.up @ self.down * self.scaling, self.base.bias)


@ordinary(X)
class TiedWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(5, 64, bias=False)
        self.decoder = nn.Linear(64, 5, bias=False)
        self.decoder.weight = nn.Parameter(torch.randn(5, 64))
        self.again = self.encoder

    def forward(self, x):
        return self.decoder(self.encoder(x)) + F.linear(self.again(x), self.encoder.weight.t())


@ordinary(X)
class ParametrizedLayer(nn.Module):
    """torch.nn.utils.parametrizations."""

    def __init__(self):
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(5, 70))
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(70, 5))

    def forward(self, x):
        return self.spectral(self.layer(x))


@ordinary(T("batch", 8))
def spectrum(x):
    return torch.fft.rfft(x), torch.fft.rfft(x).abs(), torch.fft.irfft(torch.fft.rfft(x), n=8), torch.fft.fft(x).real


@ordinary(T("batch", 4, 6))
def spectrum_of_images(x):
    y = torch.fft.fft2(x)
    return torch.fft.fftshift(y.abs()), torch.angle(y[..., 1:2]), torch.fft.ifft2(y * 2).real


@ordinary(T("batch", 6, 2))
def complex_numbers(x):
    z = torch.view_as_complex(x)
    return torch.view_as_real(z * z.conj()), z.abs(), torch.polar(z.abs(), z.angle()).imag, (z * 2j + 1).real
