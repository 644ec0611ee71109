"""Unbacked sizes: comparison with eager torch on three inputs with different counts, including 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import fxonnx
from fxonnx import CaptureError

from ..functions import Function

V = torch.tensor
X = (V([[1.0, -2, 3], [-4, 5, 6]]), V([[-1.0, -2, -3], [-4, -5, -6], [-7, -8, -9]]), V([[2.0, 3, 4]]))
"""Five, none and three positive numbers, in two, three and one rows."""


def count(x: torch.Tensor) -> Any:
    """The sum as a Python int."""
    return (x > 0).sum().item()


def size(x: torch.Tensor) -> Any:
    number = count(x)
    torch._check(number >= 0)
    torch._check(number <= 100)
    return number


def first(x: torch.Tensor) -> Any:
    number = count(x)
    torch._check(number >= 0)
    torch._check(number <= 100)
    return torch.arange(100.0)[:number]


def written(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[x > 0] = 7.0
    return y


def written_rows(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[(x > 0).any(1)] = V([1.0, 2.0, 3.0])
    return y


def narrowed(x: torch.Tensor) -> torch.Tensor:
    number = count(x)
    torch._check(number >= 0)
    torch._check(number <= 10)
    return torch.arange(20.0).narrow(0, number, 3)


def images(x: torch.Tensor) -> torch.Tensor:
    return x[(x > 0).any(1)][:, :, None, None] * torch.arange(16.0).view(4, 4)


ROWS = {
    "nonzero": lambda x: (x > 0).nonzero(),
    "nonzero as a tuple": lambda x: (x > 0).nonzero(as_tuple=True),
    "argwhere": lambda x: torch.argwhere(x > 0),
    "where": lambda x: torch.where(x > 0),
    "masked_select": lambda x: x.masked_select(x > 0),
    "boolean index": lambda x: x[x > 0],
    "boolean index of rows": lambda x: x[(x > 0).any(1)],
    "boolean index beside a slice": lambda x: x[:, V([True, False, True])],
    "boolean index written to": written,
    "rows written to": written_rows,
    "masked_scatter": lambda x: x.masked_scatter(x > 0, torch.arange(9.0)),
    "index_put by positions": lambda x: torch.zeros_like(x).index_put(torch.where(x > 0), x[x > 0] * 2),
    "unique": lambda x: (x > 0).int().unique(),
    "unique with counts": lambda x: torch.unique((x // 2).long(), return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x: torch.unique_consecutive((x > 0).int().flatten()),
    "bincount": lambda x: torch.bincount((x > 0).int().flatten(), minlength=2),
    "sum of selected elements": lambda x: (x[x > 0].sum(), x[x > 0].numel()),
    "arithmetic of selected elements": lambda x: x[x > 0] * 2 + 1,
    "softmax of selected elements": lambda x: torch.softmax(x[x > 0], 0),
    "cumsum of selected elements": lambda x: x[x > 0].cumsum(0),
    "sorted": lambda x: x[x > 0].sort(descending=True)[0],
    "product of rows": lambda x: x[(x > 0).any(1)] @ torch.ones(3, 2),
    "products of all pairs": lambda x: x[x > 0][:, None] * x[x > 0],
    "linear of rows": lambda x: F.linear(x[(x > 0).any(1)], torch.ones(2, 3), torch.ones(2)),
    "batch norm of rows": lambda x: F.batch_norm(x[(x > 0).any(1)], V([1.0, 2, 3]), V([4.0, 5, 6]), V([7.0, 8, 9])),
    "batch norm of images": lambda x: F.batch_norm(images(x), V([1.0, 2, 3]), V([4.0, 5, 6])),
    "instance norm": lambda x: F.instance_norm(images(x)),
    "convolution": lambda x: F.conv2d(images(x), torch.ones(2, 3, 3, 3)),
    "joined": lambda x: torch.cat([x[x > 0], x[x < 0], x.flatten()]),
    "stacked": lambda x: torch.stack([x[x > 0], x[x > 0] * 2]),
    "padded": lambda x: F.pad(x[x > 0], (1, 2)),
    "flipped": lambda x: x[x > 0].flip(0),
    "sliced": lambda x: x[x > 0][:2],
    "the last ones": lambda x: x[x > 0][-2:],
    "gathered twice": lambda x: x.flatten()[(x.flatten() > 0).nonzero()[:, 0]],
    "expanded": lambda x: x[x > 0][:, None].expand(-1, 3),
    "viewed": lambda x: x[(x > 0).any(1)].view(-1, 1),
    "transposed": lambda x: x[(x > 0).any(1)].t(),
    "one-hot": lambda x: F.one_hot((x > 0).nonzero()[:, 1], 3),
    "embedded": lambda x: F.embedding((x > 0).nonzero()[:, 1], torch.arange(6.0).view(3, 2)),
    "repeated by tensors": lambda x: x[:, 0].repeat_interleave((x > 0).sum(1)),
    "item": lambda x: x * count(x),
    "item in arange": lambda x: torch.arange(size(x)) * 2,
    "item in full": lambda x: torch.full((size(x), 2), 3.0),
    "item in zeros": lambda x: torch.zeros(size(x), x.shape[0]) + 1,
    "item in a slice": first,
    "item in narrow": narrowed,
    "item in expand": lambda x: x[:1].expand(size(x), 3),
    "item in repeat": lambda x: x[0].repeat(size(x)),
    "item in topk": lambda x: torch.arange(100.0).topk(size(x))[0],
    "item in linspace": lambda x: torch.zeros(size(x)).cumsum(0),
    "a branch by torch.where": lambda x: torch.where((x > 0).any(), x, -x),
    "how many there are": lambda x: x[x > 0].shape[0] * 2 + x.shape[0],
    "sizes of both": lambda x: x.new_ones((x[x > 0].shape[0], x.shape[0])),
}  # fmt: skip


@pytest.mark.parametrize("shapes", [None, ({0: "rows"},)], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ROWS)
def test_three_counts_match_eager_torch(name: str, shapes: Any) -> None:
    model = Function(ROWS[name]).eval()
    program = fxonnx.export(model, (X[0],), dynamic_shapes=shapes)
    examples = X if shapes is not None else (X[0], -X[0].abs(), X[0].abs())
    for x in examples:
        expected = pytree.tree_leaves(model(x))
        for one, other in zip(program(x), expected, strict=True):
            torch.testing.assert_close(one, torch.as_tensor(other))


WRONG = {
    "a branch": lambda x: x + 1 if count(x) > 2 else x,
    "a loop": lambda x: [x * index for index in range(count(x))],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_data_dependent_branch_is_an_error_with_the_line(name: str) -> None:
    with pytest.raises(
        CaptureError, match=r"(?s)computed from a tensor must be known.*at: .*test_unbacked_sizes\.py:\d+ in <lambda>: "
    ):
        fxonnx.export(Function(WRONG[name]).eval(), (X[0],))
