"""torch.nn.functional and torch functions in common call styles."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .harness import T, ids, mask, ordinary

X = T("batch", 8)
SEQUENCE = T("batch", "time", 8)
SIGNAL = T("batch", 4, "time")
IMAGE = T("batch", 4, "height", "width")


@ordinary(SEQUENCE, half=True)
def activations(x):
    return (
        F.relu(x),
        F.gelu(x),
        F.silu(x),
        F.leaky_relu(x, 0.2),
        F.elu(x),
        F.mish(x),
        F.hardswish(x),
        F.softplus(x),
        F.glu(x),
    )


@ordinary(SEQUENCE)
def further_activations(x):
    return (
        F.logsigmoid(x),
        F.hardtanh(x, -1, 0.5),
        F.relu6(x * 4),
        F.celu(x),
        F.selu(x),
        F.softsign(x),
        F.tanhshrink(x),
        F.prelu(x, torch.tensor([0.25])),
    )


@ordinary(SEQUENCE, half=True)
def normalizations(x):
    w, b = torch.linspace(0.5, 1.5, 8), torch.arange(8.0) / 8
    return (
        F.layer_norm(x, (8,), w.to(x.dtype), b.to(x.dtype)),
        F.layer_norm(x, x.shape[-1:]),
        F.rms_norm(x, (8,)),
        F.normalize(x, p=1.0, dim=2),
    )


@ordinary(IMAGE)
def normalizations_of_images(x):
    mean, var = torch.arange(4.0), torch.arange(1.0, 5.0)
    return (
        F.batch_norm(x, mean, var),
        F.group_norm(x, 2, var, mean),
        F.local_response_norm(x, 2),
        (x - x.mean((2, 3), True)) / x.std((2, 3), keepdim=True, correction=0).add(1),
    )


@ordinary(SEQUENCE)
def softmaxes(x):
    return (
        F.softmax(x, dim=-1),
        F.log_softmax(x, 1),
        F.softmin(x, -1),
        torch.softmax(x.flatten(1), 1),
        x.softmax(-1, dtype=torch.float64),
    )


@ordinary(SEQUENCE)
def dropouts_in_eval(x):
    return (
        F.dropout(x, 0.5, training=False),
        F.dropout1d(x, training=False),
        F.alpha_dropout(x, 0.2, training=False) * 2,
    )


@ordinary(X)
def linear_and_bilinear(x):
    w = torch.linspace(-1, 1, 96).reshape(12, 8)
    return F.linear(x, w), F.linear(x, w, torch.arange(12.0)), F.bilinear(x, x, w.reshape(1, 12, 8)[:, :8])


@ordinary(SIGNAL)
def convolutions_of_signals(x):
    w = torch.linspace(-1, 1, 24).reshape(2, 4, 3)
    return (
        F.conv1d(x, w, padding=1),
        F.conv1d(F.pad(x, (2, 0)), w),
        F.conv_transpose1d(x, w.transpose(0, 1), stride=2),
        F.conv1d(x, w[:1, :1].expand(4, 1, 3) * 1, padding="same", groups=4),
    )


@ordinary(IMAGE)
def convolutions_of_images(x):
    w = torch.linspace(-1, 1, 72).reshape(2, 4, 3, 3)
    blur = torch.ones(4, 1, 3, 3) / 9
    return (
        F.conv2d(x, w, torch.tensor([1.0, 2.0]), padding="same"),
        F.conv2d(x, blur, padding=1, groups=4),
        F.conv_transpose2d(x, w.transpose(0, 1), stride=2, padding=1),
    )


@ordinary(IMAGE)
def poolings(x):
    return (
        F.max_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 3, 1, 1),
        F.adaptive_avg_pool2d(x, 1),
        F.adaptive_max_pool2d(x, 1).flatten(1),
        F.max_pool2d(x, 2, ceil_mode=True),
        x.amax((2, 3)),
    )


@ordinary(IMAGE)
def global_poolings(x):
    return (
        F.avg_pool2d(x, x.shape[-2:]).flatten(1),
        F.max_pool2d(x, kernel_size=x.size()[2:]),
        x.mean([-1, -2]),
        x.flatten(2).max(-1)[0],
    )


@ordinary(T("batch", 4, 12, 12))
def pooling_pyramid(x):
    return (
        torch.cat([F.adaptive_avg_pool2d(x, k).flatten(1) for k in (1, 2, 3, 6)], 1),
        F.adaptive_max_pool2d(x, (3, 4)),
        F.adaptive_avg_pool2d(x, (None, 1)),
    )


@ordinary(IMAGE)
def resizing(x):
    return (
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, size=(5, 6), mode="bilinear"),
        F.interpolate(x, size=(7, 9), mode="bicubic", align_corners=True),
    )


@ordinary(IMAGE)
def resizing_to_sizes_of_the_input(x):
    h, w = x.shape[-2:]
    return F.interpolate(x, size=(h * 2, w + 1), mode="bilinear", align_corners=False), F.interpolate(
        x, (h + 1, w + 1), mode="nearest"
    )


@ordinary(IMAGE, T("batch", 2, "queries", "keys"))
def resized_to_another(x, y):
    return F.interpolate(y, size=x.shape[2:], mode="bilinear", align_corners=False), F.interpolate(x, y.shape[-2:])


@ordinary(IMAGE, constrained={"height >= 2": ({"height": 1},), "width >= 2": ({"width": 1},)})
def paddings(x):
    return (
        F.pad(x, (1, 2)),
        F.pad(x, (1, 1, 0, 2), value=-1.0),
        F.pad(x, (1, 1, 1, 1), mode="reflect"),
        F.pad(x, (2, 0, 0, 1), mode="replicate"),
        F.pad(x, (0, -1)),
    )


@ordinary(T("batch", 4, 6, 8))
def folding(x):
    columns = F.unfold(x, 2, stride=2)
    return (
        F.fold(columns, (6, 8), 2, stride=2),
        F.unfold(x, 3, padding=1),
        F.pixel_unshuffle(x, 2),
        F.pixel_shuffle(x, 2),
        F.channel_shuffle(x, 2),
    )


@ordinary(IMAGE, T("batch", 3, 5, 2, low=-1.0, high=1.0))
def sampling(x, grid):
    return F.grid_sample(x, grid, align_corners=False), F.grid_sample(
        x, grid, mode="nearest", padding_mode="border", align_corners=True
    )


@ordinary(ids("batch", "time", high=5))
def embeddings(tokens):
    table = torch.arange(20.0).reshape(5, 4)
    return (
        F.embedding(tokens, table),
        table[tokens],
        F.one_hot(tokens, 5),
        F.one_hot(tokens, num_classes=7).float() @ torch.ones(7, 2),
        F.embedding_bag(tokens, table, mode="mean"),
    )


@ordinary(X, X)
def distances(x, y):
    return (
        F.cosine_similarity(x, y),
        F.pairwise_distance(x, y),
        (x - y).norm(dim=1),
        torch.dist(x, y),
        (x * y).sum(-1),
        F.cosine_similarity(x[:, None], y[None], dim=-1),
    )


@ordinary(T("batch", 4, 4))
def linear_algebra(x):
    a = x @ x.mT + torch.eye(4)
    return (
        torch.linalg.inv(a),
        torch.linalg.det(a),
        torch.linalg.norm(x, dim=(1, 2)),
        torch.linalg.solve(a, x),
        torch.linalg.cholesky(a),
        torch.diagonal(a, dim1=1, dim2=2),
        a.tril(-1) + a.triu(1),
    )


@ordinary(X)
def where_and_clamps(x):
    a = torch.where(x > 0, x, 0.1 * x)
    return (
        a,
        torch.where(x > 0, 1.0, 0.0),
        torch.where(x > 0, 1, 0),
        x.clamp(-1, 1),
        x.clamp(min=0),
        x.clip(max=0.5),
        torch.heaviside(x, torch.tensor(0.5)),
        torch.logical_and(x > 0, x < 1),
    )


@ordinary(SEQUENCE)
def stacking(x):
    return (
        torch.stack([x, -x], -1).flatten(2),
        torch.cat([x, x[:, :1]], 1),
        torch.stack([x[:, :, k] for k in range(3)]),
        torch.block_diag(x[0, :1], torch.eye(2)),
        torch.movedim(x, 0, -1),
        x.swapaxes(1, 2),
    )


@ordinary(SEQUENCE)
def cumulative(x):
    return (
        x.cumsum(1),
        x.flip(1).cumsum(1).flip(1),
        torch.cumprod(x, 2),
        torch.logcumsumexp(x, 2),
        x.cummax(-1),
        torch.trapezoid(x, dim=2),
    )


@ordinary(X)
def searching(x):
    edges = torch.linspace(-2, 2, 9)
    return (
        torch.bucketize(x, edges),
        torch.searchsorted(edges, x, right=True),
        torch.isin(x.round(), torch.tensor([0.0, 1.0])),
        torch.histc(x, 4, -2, 2),
        (x.round() == 1).sum(),
    )


@ordinary(SEQUENCE)
def masks_of_numbers(x):
    keep = x.abs().amax(-1) > 1.5
    mean = (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)
    return (
        mean,
        x.masked_fill(~keep.unsqueeze(-1), -100.0).amax(1),
        keep.any(1),
        keep.int().argmax(1),
        torch.count_nonzero(x > 0, dim=1),
    )


@ordinary(X)
def statistics(x):
    z = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)
    return z, x.quantile(0.5, dim=1), x.var(unbiased=False), x.median(), x.logsumexp(1)


@ordinary(X)
def autocast_region(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = F.linear(x, torch.ones(4, 8))
    return y.float()


@ordinary(SIGNAL)
def frames_and_windows(x):
    window = torch.hann_window(4)
    return F.pad(x, (0, 4)).unfold(2, 4, 2) * window, F.avg_pool1d(x, 3, 1, 1), torch.hamming_window(4) * x[..., :1]


@ordinary(T("batch", 2, 16))
def filtered_in_the_frequency_domain(x):
    spectrum = torch.fft.rfft(x, dim=-1)
    response = torch.linspace(1, 0, 9)
    return (
        torch.fft.irfft(spectrum * response, n=x.shape[-1]),
        spectrum.real.pow(2) + spectrum.imag.pow(2),
        torch.fft.rfftfreq(16),
    )


@ordinary(mask("batch", "time"), SEQUENCE)
def positions_of_truth(keep, x):
    return (
        x * keep.unsqueeze(-1),
        keep.long().argmax(1),
        torch.where(keep, 0.0, float("-inf")),
        (~keep).sum(1),
        keep.logical_not().float().cumsum(1),
    )


@ordinary(SEQUENCE)
def strings_and_formats(x):
    equation = f"b t {'d'}, b s d -> b t s".replace(" ", "")
    assert x.dim() == 3, f"expected three axes, got {x.dim()}"
    torch._assert(x.shape[-1] == 8, "the width is 8")
    return torch.einsum(equation, x, x), x.reshape(*x.shape[:-1], 4, 2), x.view(-1, *x.shape[1:]), x.new_tensor([1, 2])
