"""Blocks and small networks of vision, sound, text and tables."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .harness import T, ids, ordinary

IMAGE = T("batch", 3, "height", "width")
FEATURES = T("batch", 8, "height", "width")


@ordinary(T("batch", 16), half=True)
class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 4), nn.Softmax(-1))

    def forward(self, x):
        return self.layers(x)


@ordinary(T("batch", 1, 28, 28), half=True)
class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 4, 5, padding=2), nn.Conv2d(4, 8, 5)
        self.f1, self.f2 = nn.Linear(200, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = F.max_pool2d(torch.tanh(self.c1(x)), 2)
        x = F.avg_pool2d(F.relu(self.c2(x)), 2)
        x = x.view(-1, 200)
        return F.log_softmax(self.f2(F.relu(self.f1(x))), dim=1)


@ordinary(IMAGE, half=True)
class Classifier(nn.Module):
    """Convolutions, batch norm, pooling to one, a head."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, 2, 1),
            nn.SiLU(),
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8, 4))

    def forward(self, x):
        return self.head(self.features(x))


@ordinary(FEATURES, half=True)
class ResidualBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.c2, self.b2 = nn.Conv2d(16, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.shortcut = nn.Sequential(nn.Conv2d(8, 16, 1, 2, bias=False), nn.BatchNorm2d(16))

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)), inplace=True)
        y = self.b2(self.c2(y))
        y += self.shortcut(x)
        return F.relu(y)


@ordinary(FEATURES)
class SqueezeAndExcitation(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8), nn.Sigmoid())

    def forward(self, x):
        b, c, _, _ = x.size()
        return x * self.fc(x.mean((2, 3))).view(b, c, 1, 1).expand_as(x)


@ordinary(FEATURES)
class InvertedResidual(nn.Module):
    """MobileNet's."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()),
            *(nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False), nn.BatchNorm2d(16), nn.Hardswish()),
            *(nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8)),
        )

    def forward(self, x):
        return x + self.body(x)


@ordinary(FEATURES)
class ConvNeXtBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.LayerNorm(8, eps=1e-6)
        self.up, self.down, self.gamma = nn.Linear(8, 32), nn.Linear(32, 8), nn.Parameter(1e-1 * torch.ones(8))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


@ordinary(FEATURES)
def channel_shuffle_and_split(x):
    b, c, h, w = x.size()
    y = x.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, -1, h, w)
    left, right = y.chunk(2, dim=1)
    return torch.cat((left, right * 2), 1)


@ordinary(IMAGE, constrained={"height % 4 == 0": ({"height": 1},), "width % 4 == 0": ({"width": 1},)})
class UNet(nn.Module):
    """A U-Net of two levels, whose upsampled maps must match the skip connections."""

    def __init__(self):
        super().__init__()
        self.d1, self.d2, self.d3 = nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.u2, self.u1 = nn.ConvTranspose2d(8, 8, 2, 2), nn.ConvTranspose2d(8, 4, 2, 2)
        self.c2, self.c1 = nn.Conv2d(16, 8, 3, 1, 1), nn.Conv2d(8, 2, 3, 1, 1)

    def forward(self, x):
        a = F.relu(self.d1(x))
        b = F.relu(self.d2(F.max_pool2d(a, 2)))
        c = F.relu(self.d3(F.max_pool2d(b, 2)))
        b = F.relu(self.c2(torch.cat([self.u2(c), b], 1)))
        return self.c1(torch.cat([self.u1(b), a], 1))


@ordinary(IMAGE, constrained={"height >= 2": ({"height": 1},), "width >= 2": ({"width": 1},)})
class UNetOfAnySize(nn.Module):
    """Upsampled maps are padded to the size of the skip connection."""

    def __init__(self):
        super().__init__()
        self.down, self.up, self.out = nn.Conv2d(3, 4, 3, 1, 1), nn.ConvTranspose2d(4, 4, 2, 2), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        a = self.down(x)
        b = self.up(F.max_pool2d(a, 2))
        dy, dx = a.size(2) - b.size(2), a.size(3) - b.size(3)
        b = F.pad(b, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.out(torch.cat([a, b], dim=1))


@ordinary(FEATURES)
class FeaturePyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.lateral = nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x):
        c3 = x
        c4 = self.down(c3)
        c5 = self.down(c4)
        p4 = self.lateral(c4) + F.interpolate(c5, size=c4.shape[-2:], mode="nearest")
        p3 = self.lateral(c3) + F.interpolate(p4, size=c3.shape[-2:])
        return {"p3": p3, "p4": p4, "p5": c5, "p6": F.max_pool2d(c5, 1, 2)}


@ordinary(FEATURES)
class PyramidPooling(nn.Module):
    """SPPF's three pools and a global one."""

    def __init__(self):
        super().__init__()
        self.inside, self.out = nn.Conv2d(8, 4, 1), nn.Conv2d(20, 8, 1)

    def forward(self, x):
        y = [self.inside(x)]
        for _ in range(3):
            y.append(F.max_pool2d(y[-1], 5, 1, 2))
        y.append(F.adaptive_avg_pool2d(y[0], 1).expand_as(y[0]))
        return self.out(torch.cat(y, 1))


@ordinary(FEATURES)
class DilatedPyramid(nn.Module):
    """DeepLab's."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList([nn.Conv2d(8, 4, 3, padding=d, dilation=d) for d in (1, 2, 4)])
        self.pool = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        size = x.shape[-2:]
        pooled = F.interpolate(self.pool(F.adaptive_avg_pool2d(x, 1)), size=size, mode="bilinear", align_corners=False)
        return torch.cat([branch(x).relu() for branch in self.branches] + [pooled], 1)


@ordinary(IMAGE)
class SuperResolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.PReLU(), nn.Conv2d(8, 12, 3, 1, 1), nn.PixelShuffle(2))

    def forward(self, x):
        return (self.layers(x) + F.interpolate(x, scale_factor=2, mode="bicubic")).clamp(0, 1)


@ordinary(FEATURES)
class DetectionHead(nn.Module):
    """YOLO's: grids and strides made in forward."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Conv2d(8, 5, 1), nn.Conv2d(8, 5, 1)])

    def forward(self, x):
        out = []
        for stride, (head, level) in enumerate(zip(self.heads, [x, F.avg_pool2d(x, 3, 2, 1)], strict=True), 1):
            y = head(level)
            b, _, h, w = y.shape
            gy, gx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            grid = torch.stack((gx, gy), 0).reshape(2, -1) + 0.5
            y = y.view(b, 5, -1)
            out.append(torch.cat(((y[:, :2].sigmoid() + grid) * stride * 8, y[:, 2:4].exp(), y[:, 4:].sigmoid()), 1))
        return torch.cat(out, 2).transpose(1, 2)


@ordinary(T("nodes", 4, low=0.0, high=9.0), T("nodes", low=0.0, high=1.0))
def boxes_filtered(boxes, scores):
    keep = scores > 0.5
    best, order = scores.sort(descending=True)
    return boxes * keep[:, None], boxes[order], best, torch.where(keep, scores, 0.0).sum()


@ordinary(T("batch", 1, 64))
class Spectrogram(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(16))
        self.mel = nn.Parameter(torch.rand(9, 4))

    def forward(self, x):
        s = torch.stft(x.squeeze(1), 16, 8, window=self.window, return_complex=True).abs() ** 2
        return torch.log(s.transpose(1, 2) @ self.mel + 1e-6).transpose(1, 2)


@ordinary(T("batch", 2, "time"), sizes={"time": (16, 24)})
class TemporalConvolutions(nn.Module):
    """Causal, dilated, gated."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv1d(4 if k else 2, 8, 2, dilation=2**k) for k in range(3)])

    def forward(self, x):
        for k, layer in enumerate(self.layers):
            a, b = layer(F.pad(x, (2**k, 0))).chunk(2, 1)
            x = torch.tanh(a) * torch.sigmoid(b)
        return x[..., -1], x


@ordinary(ids("batch", "time", high=20))
class TextClassifier(nn.Module):
    """Embedding, bidirectional LSTM, max over time."""

    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(20, 8, padding_idx=0), nn.LSTM(8, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens):
        y, (h, _) = self.lstm(self.embed(tokens))
        return self.head(y.max(1)[0]), torch.cat([h[-2], h[-1]], 1)


@ordinary(ids("batch", "time", high=20))
class ConvolutionalText(nn.Module):
    """Kernels of several widths over the tokens."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.convolutions = nn.ModuleList([nn.Conv1d(8, 4, k, padding=k - 1) for k in (2, 3, 4)])

    def forward(self, tokens):
        x = self.embed(tokens).permute(0, 2, 1)
        return torch.cat([F.relu(c(x)).max(dim=2).values for c in self.convolutions], 1)


@ordinary(ids("batch", high=20), T("batch", 1, 8), T("batch", "keys", 8))
class SequenceToSequenceStep(nn.Module):
    """One step of a decoder: GRU, attention over the encoder's states."""

    def __init__(self):
        super().__init__()
        self.embed, self.gru = nn.Embedding(20, 8), nn.GRU(16, 8, batch_first=True)
        self.out = nn.Linear(16, 20)

    def forward(self, token, hidden, states):
        x = self.embed(token).unsqueeze(1)
        weights = torch.bmm(hidden, states.transpose(1, 2)).softmax(-1)
        context = torch.bmm(weights, states)
        y, hidden = self.gru(torch.cat([x, context], -1), hidden.transpose(0, 1))
        return self.out(torch.cat([y, context], -1)).squeeze(1).log_softmax(-1), hidden.transpose(0, 1)


@ordinary(T("batch", 5, 4))
class CellLoop(nn.Module):
    """Cells, step by step over a fixed number of steps."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.rnn = nn.LSTMCell(4, 8), nn.GRUCell(8, 8), nn.RNNCell(8, 8)

    def forward(self, x):
        h = c = g = r = x.new_zeros(x.shape[0], 8)
        outputs = []
        for t in range(x.shape[1]):
            h, c = self.lstm(x[:, t], (h, c))
            g = self.gru(h, g)
            r = self.rnn(g, r)
            outputs.append(r)
        return torch.stack(outputs, 1), c


@ordinary(T("batch", "time", 8))
class StackedRecurrence(nn.Module):
    """Initial states of the right size, made in forward."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTM(8, 8, 2, batch_first=True), nn.GRU(8, 4, bidirectional=True)

    def forward(self, x):
        h = torch.zeros(2, x.size(0), 8)
        y, (h, _) = self.lstm(x, (h, torch.zeros_like(h)))
        z, g = self.gru(y.transpose(0, 1))
        return z.transpose(0, 1)[:, -1], h[-1], g


@ordinary(T("batch", 16))
class VariationalAutoencoder(nn.Module):
    """In eval mode the mean is the sample."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(16, 8), nn.Linear(4, 16)

    def sample(self, mu, logvar):
        if self.training:
            return mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return mu

    def forward(self, x):
        mu, logvar = self.encode(x).chunk(2, -1)
        return torch.sigmoid(self.decode(self.sample(mu, logvar))), mu, logvar


@ordinary(T("batch", 16), T("batch", 4))
class NoiseAsInput(nn.Module):
    """Reparameterization with noise given; a generator of images."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(16, 8)
        self.decode = nn.Sequential(
            nn.Unflatten(1, (4, 1, 1)), nn.ConvTranspose2d(4, 8, 4), nn.BatchNorm2d(8), nn.LeakyReLU(0.2)
        )

    def forward(self, x, noise):
        mu, logvar = self.encode(x).split(4, 1)
        return self.decode(mu + noise * (logvar * 0.5).exp()).tanh()


@ordinary(T("batch", 4, "height", "width"), ids("batch", high=1000))
class DiffusionBlock(nn.Module):
    """Time embedding, group norm, scale and shift."""

    def __init__(self):
        super().__init__()
        self.time, self.norm, self.conv = nn.Linear(8, 8), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x, t):
        rates = torch.exp(-torch.arange(4) * (9.2 / 3))
        angles = t[:, None].float() * rates[None]
        embedding = F.silu(self.time(torch.cat([angles.sin(), angles.cos()], -1)))
        scale, shift = embedding[:, :, None, None].chunk(2, 1)
        return x + self.conv(F.silu(self.norm(x) * (1 + scale) + shift))


@ordinary(ids("batch", 3, high=10), T("batch", 4))
class TabularNetwork(nn.Module):
    """Categories embedded, numbers normalized, factorization machine."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(10, 8) for _ in range(3)])
        self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(28, 1)

    def forward(self, categories, numbers):
        embedded = torch.stack([table(categories[:, k]) for k, table in enumerate(self.tables)], 1)
        pairs = 0.5 * (embedded.sum(1) ** 2 - (embedded**2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.out(torch.cat([embedded.flatten(1), self.norm(numbers)], 1)) + pairs).squeeze(-1)


@ordinary(T("batch", 3, "nodes"))
class PointNet(nn.Module):
    """Shared layers, max over the points, an alignment."""

    def __init__(self):
        super().__init__()
        self.local, self.align = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU()), nn.Linear(16, 9)

    def forward(self, x):
        features = torch.max(self.local(x), 2)[0]
        matrix = self.align(features).view(-1, 3, 3) + torch.eye(3)
        return torch.bmm(x.transpose(2, 1), matrix), features


@ordinary(T("batch", 6), half=True)
class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 1)
        self.log_std = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        h = torch.tanh(self.body(x))
        mean = self.actor(h)
        return (
            mean.clamp(-1, 1),
            self.log_std.expand_as(mean).exp(),
            self.critic(h).squeeze(-1),
            F.softmax(mean, -1).argmax(-1),
        )


@ordinary(T("batch", "time", 4))
class StateSpace(nn.Module):
    """A selective scan, as a cumulative sum."""

    def __init__(self):
        super().__init__()
        self.a, self.x_proj = nn.Parameter(torch.rand(4, 4)), nn.Linear(4, 12)

    def forward(self, u):
        delta, b, c = self.x_proj(u).chunk(3, -1)
        decay = torch.exp(-F.softplus(delta).unsqueeze(-1) * torch.exp(self.a))
        state = torch.cumsum(decay * b.unsqueeze(2) * u.unsqueeze(-1), 1)
        return (state * c.unsqueeze(2)).sum(-1)


@ordinary(T("batch", 3, "height", "width"), T("batch", 2, 3))
class SpatialTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x, theta):
        grid = F.affine_grid(theta, list(x.size()), align_corners=False)
        return F.grid_sample(x, grid * self.gain, align_corners=False)


@ordinary(T("batch", 3, "height", "width"), T("batch", "height", "width", 2, low=-1.0, high=1.0))
def warped(x, flow):
    h, w = x.shape[-2:]
    y, z = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    grid = torch.stack([z, y], -1) + flow
    grid = 2 * grid / torch.tensor([w, h]) - 1
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=True)
