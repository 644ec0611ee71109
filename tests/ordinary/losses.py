"""Losses, as modules and as functions, and the heads before them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .harness import Row, T, ids, mask, ordinary

SCORES, CLASSES, VECTORS, SIGNS = T("batch", 5), ids("batch", high=5), T("batch", 8), T("batch", low=0.0, high=2.0)
UNIT = T("batch", 5, low=0.01, high=0.99)


def _loss(loss, *inputs, name="", **options):
    return Row(name or type(loss).__name__, lambda: loss, inputs, **options)


LOSSES = (
    _loss(nn.CrossEntropyLoss(), SCORES, CLASSES),
    _loss(nn.CrossEntropyLoss(weight=torch.arange(1.0, 6.0), label_smoothing=0.1), SCORES, CLASSES, name="smoothed"),
    _loss(nn.CrossEntropyLoss(ignore_index=0, reduction="sum"), SCORES, CLASSES, name="ignoring"),
    _loss(nn.CrossEntropyLoss(), SCORES, UNIT, name="of_probabilities"),
    _loss(nn.CrossEntropyLoss(reduction="none"), T("batch", 5, "time"), ids("batch", "time", high=5), name="per_token"),
    _loss(nn.NLLLoss(), SCORES, CLASSES),
    _loss(
        nn.NLLLoss(), T("batch", 5, "height", "width"), ids("batch", "height", "width", high=5), name="nll_of_pixels"
    ),
    _loss(nn.BCELoss(), UNIT, UNIT),
    _loss(nn.BCEWithLogitsLoss(pos_weight=torch.arange(1.0, 6.0)), SCORES, UNIT),
    _loss(nn.MSELoss(), SCORES, SCORES),
    _loss(nn.MSELoss(reduction="none"), SCORES, T("batch", 5, high=5.0), name="mse_each"),
    _loss(nn.L1Loss(), SCORES, UNIT),
    _loss(nn.SmoothL1Loss(beta=0.5), SCORES, UNIT),
    _loss(nn.HuberLoss(delta=0.7), SCORES, UNIT),
    _loss(nn.KLDivLoss(reduction="batchmean"), SCORES, UNIT),
    _loss(nn.KLDivLoss(log_target=True, reduction="sum"), SCORES, SCORES, name="kl_of_logs"),
    _loss(nn.PoissonNLLLoss(full=True), SCORES, UNIT),
    _loss(nn.GaussianNLLLoss(), SCORES, UNIT, UNIT),
    _loss(nn.SoftMarginLoss(), SCORES, UNIT),
    _loss(nn.HingeEmbeddingLoss(), SCORES, T("batch", 5, dtype=torch.int64, low=1, high=2)),
    _loss(nn.MarginRankingLoss(margin=0.5), T("batch"), SIGNS, SIGNS),
    _loss(nn.MultiMarginLoss(), SCORES, CLASSES),
    _loss(nn.MultiLabelMarginLoss(), SCORES, ids("batch", 5, high=5)),
    _loss(nn.MultiLabelSoftMarginLoss(), SCORES, UNIT),
    _loss(nn.CosineEmbeddingLoss(margin=0.1), VECTORS, VECTORS, T("batch", dtype=torch.int64, low=1, high=2)),
    _loss(nn.TripletMarginLoss(), VECTORS, T("batch", 8, high=3.0), T("batch", 8, low=-3.0)),
    _loss(
        nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance()),
        VECTORS,
        T("batch", 8, high=3.0),
        T("batch", 8, low=-3.0),
    ),
    Row("LinearCrossEntropyLoss", lambda: nn.LinearCrossEntropyLoss(8, 5), (VECTORS, CLASSES)),
)


@ordinary(T("time", "batch", 5), T("batch", 2, dtype=torch.int64, low=1, high=5))
class SpeechLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.loss = nn.CTCLoss(zero_infinity=True)

    def forward(self, logits, targets):
        t, n = logits.shape[:2]
        return self.loss(logits.log_softmax(-1), targets, torch.full((n,), t), torch.full((n,), targets.shape[1]))


@ordinary(VECTORS)
class LogProbabilitiesOfManyClasses(nn.Module):
    """nn.AdaptiveLogSoftmaxWithLoss in inference."""

    def __init__(self):
        super().__init__()
        self.head = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4, 10], div_value=2.0)

    def forward(self, x):
        return self.head.log_prob(x)


@ordinary(SCORES, CLASSES)
def classification(logits, target):
    loss = F.cross_entropy(logits, target)
    accuracy = (logits.argmax(-1) == target).float().mean()
    return {"loss": loss, "accuracy": accuracy, "confidence": logits.softmax(-1).amax(-1)}


@ordinary(T("batch", "time", 9), ids("batch", "time", high=9))
def language_modelling(logits, labels):
    shifted, target = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
    return F.cross_entropy(shifted.view(-1, 9), target.view(-1), ignore_index=-100, reduction="sum"), logits[
        :, -1
    ].argmax(-1)


@ordinary(T("batch", "time", 9), ids("batch", "time", high=9))
def tokens_without_padding(logits, labels):
    labels = labels.masked_fill(labels == 0, -100)
    losses = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")
    return losses.sum() / (labels != -100).sum().clamp(min=1)


@ordinary(SCORES, UNIT)
def focal(logits, target):
    p = torch.sigmoid(logits)
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return ((0.25 * target + 0.75 * (1 - target)) * (1 - (p * target + (1 - p) * (1 - target))) ** 2 * ce).mean()


@ordinary(T("batch", 1, "height", "width"), mask("batch", 1, "height", "width"))
def dice(logits, target):
    p, y = logits.sigmoid().flatten(1), target.float().flatten(1)
    return (1 - (2 * (p * y).sum(1) + 1) / (p.sum(1) + y.sum(1) + 1)).mean()


@ordinary(T("batch", 8), T("batch", 8))
class ContrastiveHead(nn.Module):
    """CLIP."""

    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(8, 16, bias=False), nn.Linear(8, 16, bias=False)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        a, b = F.normalize(self.image(a), dim=-1), F.normalize(self.text(b), dim=-1)
        logits = self.scale.exp() * a @ b.t()
        target = torch.arange(logits.shape[0])
        return logits, (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


@ordinary(T("batch", 8), T("batch", 8), T("batch", 5), T("batch", 5))
def distances_and_similarities(a, b, mu, logvar):
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return (
        F.cosine_similarity(a, b),
        F.pairwise_distance(a, b),
        torch.cdist(a, b),
        kl,
        F.mse_loss(a, b),
        (a - b).abs().mean(),
    )


@ordinary(T("batch", 2, 4, low=0.0, high=2.0), T("batch", 2, 4, low=0.0, high=2.0))
def box_regression(a, b):
    area = (a[..., 2:] - a[..., :2]).clamp(min=0).prod(-1)
    return (
        F.smooth_l1_loss(a, b, reduction="none").sum(-1),
        area,
        F.l1_loss(a, b),
        torch.cat([a[..., :2], b[..., 2:]], -1),
    )


@ordinary(T("batch", "time", 5), ids("batch", "time", high=5))
class ConditionalRandomField(nn.Module):
    """The score of one path and the partition function of a CRF, in a few steps."""

    def __init__(self):
        super().__init__()
        self.transitions = nn.Parameter(torch.randn(5, 5))

    def forward(self, emissions, tags):
        picked = emissions.gather(2, tags.unsqueeze(-1)).squeeze(-1).sum(1)
        moves = self.transitions[tags[:, :-1], tags[:, 1:]].sum(1)
        step = torch.logsumexp(emissions[:, 0].unsqueeze(2) + self.transitions, 1) + emissions[:, -1]
        return picked + moves, step.logsumexp(-1)


@ordinary(T("batch", 3, "height", "width"), T("batch", 3, "height", "width"))
def image_quality(a, b):
    mse = F.mse_loss(a, b)
    dx = (a[..., 1:] - a[..., :-1]).abs().sum() + (a[..., 1:, :] - a[..., :-1, :]).abs().sum()
    mu, nu = F.avg_pool2d(a, 3, 1, 1), F.avg_pool2d(b, 3, 1, 1)
    return 10 * torch.log10(4 / mse), dx, ((2 * mu * nu + 0.01) / (mu**2 + nu**2 + 0.01)).mean((1, 2, 3))


@ordinary(T("batch", 16), half=True)
class Heads(nn.Module):
    """Multi-task: classes, boxes, an embedding."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1))
        self.classes, self.boxes, self.embedding = nn.Linear(32, 3), nn.Linear(32, 4), nn.Linear(32, 8, bias=False)

    def forward(self, x):
        x = self.trunk(x)
        return {
            "probabilities": self.classes(x).softmax(-1),
            "boxes": self.boxes(x).sigmoid(),
            "embedding": F.normalize(self.embedding(x), dim=-1),
        }
