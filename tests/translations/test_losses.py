"""Losses that have a translation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from .harness import Case, T, run

LABELS = torch.tensor([[3, 0, -1, 1], [1, -1, 0, 2], [-1, 0, 1, 2], [3, 2, 1, 0]])
CASES = tuple(
    Case(
        "aten.multilabel_margin_loss.default",
        lambda x, t, r=reduction: F.multilabel_margin_loss(x, t, reduction=r),
        (inputs, labels),
        f"{reduction}, {labels.dim()}d",
    )
    for reduction in ("none", "mean", "sum")
    for inputs, labels in ((T((4, 4)), LABELS), (T((4,)), LABELS[0]))
    # For one sample without a reduction the shape of torch's fake tensor differs from its kernel's.
    if (reduction, labels.dim()) != ("none", 1)
)

_SCORES, _CLASSES = T(("n", 5)), T(("n",), torch.int64, 0, 5)
_NLL, _CROSS = "aten.nll_loss_nd.default", "aten.cross_entropy_loss.default"
_WEIGHT = torch.linspace(0.5, 1.5, 5)
_IGNORED = torch.tensor([2, 0, -100, 4])
_P = T(("n", 3), low=0.0, high=1.0)
_CERTAIN = (
    torch.tensor([0.0, 1.0, 0.0, 1.0, 1e-9, 1 - 2**-24, 0.5]),
    torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.25]),
)


def _class_losses() -> Iterator[Case]:
    for target, function, operator in (
        (_NLL, F.nll_loss, "NegativeLogLikelihoodLoss"),
        (_CROSS, F.cross_entropy, "SoftmaxCrossEntropyLoss"),
    ):
        for reduction in ("none", "mean", "sum"):

            def loss(x, t, w=None, f=function, r=reduction, **options):
                return f(x, t, w, reduction=r, **options)

            yield Case(target, loss, (_SCORES, _CLASSES), reduction)
            yield Case(target, loss, (T((4, 5)), _IGNORED), f"{reduction}, one node", ops=(operator,))
            yield Case(target, partial(loss, w=_WEIGHT), (T((4, 5)), _IGNORED), f"{reduction}, weights")
            yield Case(target, partial(loss, ignore_index=2), (_SCORES, _CLASSES), f"{reduction}, ignored")
            yield Case(target, loss, (T(("n", 5, 2, 3)), T(("n", 2, 3), torch.int64, 0, 5)), f"{reduction}, images")
            yield Case(target, loss, (T((5,)), torch.tensor(3)), f"{reduction}, one sample")
            yield Case(target, loss, (T((4, 5), torch.float64), _IGNORED), f"{reduction}, float64")
            yield Case(target, loss, (T((4, 5), torch.bfloat16), _IGNORED), f"{reduction}, bfloat16")
            yield Case(target, loss, (_SCORES, _CLASSES), f"{reduction}, opset 11", opset=11)
            yield Case(target, partial(loss, w=_WEIGHT), (_SCORES, _CLASSES), f"{reduction}, opset 13", opset=13)
        yield Case(target, function, (T((2, 5)), torch.tensor([-100, -100])), "all ignored")
        yield Case(target, function, (T((0, 5)), torch.zeros(0, dtype=torch.int64)), "no samples")
    for name, size in (("nll_loss", ()), ("nll_loss2d", (2, 3))):
        inputs = (T(("n", 5, *size)), T(("n", *size), torch.int64, 0, 5))
        yield Case(f"aten.{name}.default", getattr(torch.ops.aten, name), inputs)
    for reduction in ("none", "mean", "sum"):
        smooth = partial(F.cross_entropy, label_smoothing=0.25, reduction=reduction)
        yield Case(_CROSS, smooth, (_SCORES, _CLASSES), f"label smoothing, {reduction}")
        yield Case(_CROSS, smooth, (T((4, 5)), _IGNORED), f"label smoothing, ignored, {reduction}")
        yield Case(_CROSS, partial(smooth, weight=_WEIGHT), (T((4, 5)), _IGNORED), f"smooth, weights, {reduction}")
        yield Case(_CROSS, smooth, (T((5,), torch.float64), torch.tensor(1)), f"smooth, one sample, {reduction}")
    yield Case(_CROSS, F.cross_entropy, (_SCORES, T(("n", 5), low=0.0, high=1.0)), "probabilities")


PAIRS = (
    *(
        case
        for reduction in ("none", "mean", "sum")
        for case in (
            Case(
                "aten.soft_margin_loss.default",
                partial(F.soft_margin_loss, reduction=reduction),
                (T(("n", 3)), T(("n", 3))),
                reduction,
            ),
            Case(
                "aten.binary_cross_entropy.default",
                partial(F.binary_cross_entropy, reduction=reduction),
                (_P, _P),
                reduction,
            ),
            Case(
                "aten.binary_cross_entropy.default",
                partial(F.binary_cross_entropy, reduction=reduction),
                _CERTAIN,
                f"{reduction}, certain",
                atol=0,
            ),
        )
    ),
    Case("aten.binary_cross_entropy.default", F.binary_cross_entropy, (_P, _P, T((3,))), "weights"),
    Case("aten.binary_cross_entropy.default", F.binary_cross_entropy, tuple(x.double() for x in _CERTAIN), "float64"),
    Case("aten.binary_cross_entropy.default", F.binary_cross_entropy, tuple(x.half() for x in _CERTAIN), "float16"),
    Case(
        "aten.margin_ranking_loss.default",
        lambda x: F.margin_ranking_loss(x[:, 0], x[:, 1], torch.ones(x.shape[0]), margin=0.5),
        (T(("n", 3)),),
        "columns",
    ),
    Case("aten.soft_margin_loss.default", F.soft_margin_loss, (T((4,), torch.float64), T((4,), torch.float64)), "f64"),
)


_CHUNKED = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=2) if hasattr(F, "linear_cross_entropy") else None


def _linear_losses() -> Iterator[Case]:
    for reduction in ("none", "mean", "sum"):
        for bias in (False, True) if _CHUNKED else ():
            name = "_linear_cross_entropy_batch_chunked" + ("_no_reduction" if reduction == "none" else "")

            def loss(x, w, t, b=None, r=reduction):
                return F.linear_cross_entropy(x, w, t, linear_bias=b, reduction=r, options=_CHUNKED)

            inputs = (T((4, 3)), T((5, 3)), _IGNORED, *((T((5,)),) if bias else ()))
            yield Case(f"torch_nn.{name}.default", loss, inputs, f"{reduction}, {bias}")


def _ctc_losses() -> Iterator[Case]:
    labels = torch.tensor([[2, 2, 2, 3], [1, 4, 1, 1], [3, 3, 1, 99], [1, 2, 3, 4]])
    steps, counts = torch.tensor([6, 5, 4, 2]), torch.tensor([3, 0, 3, 4])
    scores, one = T((6, 4, 5)), T((6, 5))
    tensor, ints = "aten.ctc_loss.Tensor", "aten.ctc_loss.IntList"

    def loss(x, t=labels, i=steps, n=counts, **options):
        return F.ctc_loss(x.log_softmax(-1), t, i, n, **options)

    for name, function, inputs in (
        ("mean", loss, (scores,)),
        ("none, infinite", partial(loss, reduction="none"), (scores,)),
        ("sum, zeros", partial(loss, reduction="sum", zero_infinity=True), (scores,)),
        ("another blank", partial(loss, reduction="none", blank=4), (scores,)),
        ("concatenated", partial(loss, t=torch.tensor([2, 2, 3, 3, 3, 1, 1, 2, 3, 4]), reduction="none"), (scores,)),
        ("one sample", partial(loss, t=labels[0, :3], i=steps[0], n=counts[0], reduction="none"), (one,)),
        ("one sample, mean", partial(loss, t=labels[0, :3], i=steps[0], n=counts[0]), (one,)),
        ("float64", loss, (T((6, 4, 5), torch.float64),)),
        ("dynamic length", loss, (T(("h", 4, 5)),)),
        ("lengths as inputs", lambda x, i, n: loss(x, i=i, n=n), (scores, steps, counts)),
    ):
        yield Case(tensor, function, inputs, name)
    yield Case(ints, lambda x: loss(x, i=(6, 5, 4, 6), n=(3, 1, 2, 3), reduction="none"), (scores,))


CASES = (*CASES, *_ctc_losses(), *_class_losses(), *PAIRS, *_linear_losses())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_losses(case: Case) -> None:
    run(case)
