"""Random programs of views and writes: the functional form agrees with eager torch, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from .functionalize_harness import check, inputs, run, same

EXAMPLES = int(os.environ.get("FXONNX_RANDOM_PROGRAMS", "60"))

# Each takes a tensor, a dim, and two small numbers, which it interprets itself.
View = Callable[[Tensor, int, int, int], Any]
VIEWS: dict[str, View] = {
    "select": lambda t, d, a, b: t.select(d, a % t.shape[d]),
    "select_last": lambda t, d, a, b: t.select(d, -1),
    "slice": lambda t, d, a, b: t[(slice(None),) * d + (slice(a % t.shape[d], None, 1 + b % 2),)],
    "slice_end": lambda t, d, a, b: t[(slice(None),) * d + (slice(None, -1 if t.shape[d] > 1 else None),)],
    "narrow": lambda t, d, a, b: t.narrow(d, a % t.shape[d], 1),
    "transpose": lambda t, d, a, b: t.transpose(d, b % t.dim()),
    "permute": lambda t, d, a, b: t.permute(*range(d, t.dim()), *range(d)),
    "movedim": lambda t, d, a, b: t.movedim(d, b % t.dim()),
    "flat": lambda t, d, a, b: t.reshape(-1),
    "halves": lambda t, d, a, b: t.reshape(2, -1) if t.numel() % 2 == 0 else t.reshape(-1),
    "flatten": lambda t, d, a, b: t.flatten(0, d),
    "unflatten": lambda t, d, a, b: t.unflatten(d, (-1, 2) if t.shape[d] % 2 == 0 else (1, -1)),
    "unsqueeze": lambda t, d, a, b: t.unsqueeze(d) if t.dim() < 4 else t.squeeze(),
    "squeeze": lambda t, d, a, b: t.squeeze(d),
    "diagonal": lambda t, d, a, b: t.diagonal(0, d, (d + 1) % t.dim()) if t.dim() > 1 else t[:1],
    "chunk": lambda t, d, a, b: t.chunk(2, d)[-1],
    "split": lambda t, d, a, b: t.split(1 + a, d)[0],
    "unbind": lambda t, d, a, b: t.unbind(d)[b % t.shape[d]],
    "tensor_split": lambda t, d, a, b: t.tensor_split(2, d)[0],
    "detach": lambda t, d, a, b: t.detach(),
    "contiguous": lambda t, d, a, b: t.contiguous(),
    "to": lambda t, d, a, b: t.to(torch.float32),
    "expand": lambda t, d, a, b: t.unsqueeze(0).expand(2, *t.shape) if t.dim() < 4 else t.detach(),
    "expand_as": lambda t, d, a, b: t.expand_as(t),
    "view_as": lambda t, d, a, b: t.view_as(t),
    "unfold": lambda t, d, a, b: t.unfold(d, 1, 1 + a) if t.dim() < 4 else t.select(d, 0),
    "bits": lambda t, d, a, b: t.view(torch.float32),
    "complex": lambda t, d, a, b: (
        torch.view_as_real(torch.view_as_complex(t)) if t.shape[-1] == 2 and t.is_contiguous() else t.movedim(0, -1)
    ),
}
# Each takes the tensor to mutate, an operand that broadcasts to it, and a small number.
Write = Callable[[Tensor, Tensor, int], Any]
WRITES: dict[str, Write] = {
    "add": lambda t, o, a: t.add_(o, alpha=a),
    "mul": lambda t, o, a: t.mul_(a + 1),
    "sub_double": lambda t, o, a: t.sub_(o.double()),
    "copy": lambda t, o, a: t.copy_(o),
    "copy_int": lambda t, o, a: t.copy_(o.to(torch.int32)),
    "fill": lambda t, o, a: t.fill_(a),
    "zero": lambda t, o, a: t.zero_(),
    "relu": lambda t, o, a: t.relu_(),
    "clamp": lambda t, o, a: t.clamp_(-a, a),
    "gt": lambda t, o, a: t.gt_(o),
    "mask": lambda t, o, a: t.masked_fill_(o > 0, a),
    "put": lambda t, o, a: t.index_put_((torch.tensor([0, -1]),), torch.tensor(float(a))) if t.dim() else t.neg_(),
    "put_mask": lambda t, o, a: t.index_put_((t > a,), torch.tensor(-1.0)) if t.dim() else t.neg_(),
    "index_fill": lambda t, o, a: t.index_fill_(0, torch.tensor([0]), a) if t.dim() else t.abs_(),
    "assign": lambda t, o, a: t.__setitem__(..., o),
}
STATES = [(2, 3, 4), (4, 6), (2, 2, 2), (5,)]
Step = tuple[str, str, int, int, int, int]


class Program(nn.Module):
    """A module that runs steps on two inputs and a buffer; a step may add a tensor that later steps use by number."""

    def __init__(self, shape: Sequence[int], steps: Sequence[Step], outputs: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("state", torch.linspace(-3, 3, torch.Size(shape).numel()).reshape(shape))
        self.steps = steps
        self.outputs = outputs

    def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
        tensors = [self.state, x, y, x + 1]
        for step in self.steps:
            advance(tensors, step)
        return [tensors[index] for index in self.outputs]


def advance(tensors: list[Tensor], step: Step) -> None:
    """Run one step: (kind, name, tensor, dim or operand, a, b)."""
    kind, name, index, other, a, b = step
    if kind == "view":
        tensors.append(VIEWS[name](tensors[index], other, a, b))
    elif kind == "write":
        WRITES[name](tensors[index], tensors[other] if other >= 0 else tensors[index].clone(), a)
    else:
        tensors.append(tensors[index] * 2 - 1)


def fits(operand: Tensor, target: Tensor) -> bool:
    """Whether an operand broadcasts to a tensor, and a write with it is well-defined in torch."""
    try:
        if torch.broadcast_shapes(operand.shape, target.shape) != target.shape:
            return False
    except RuntimeError:
        return False
    return operand.untyped_storage().data_ptr() != target.untyped_storage().data_ptr()


def shows_twice(tensor: Tensor) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, tuple[Tensor, Tensor]]:
    """A random program that runs in eager torch; its tensors are computed on the way to choose the next steps."""
    shape = draw(st.sampled_from(STATES))
    x = torch.linspace(2, -2, 24).reshape(draw(st.sampled_from([(2, 3, 4), (4, 6), (2, 2, 3, 2)])))
    y = torch.linspace(-1, 1, 6).reshape(draw(st.sampled_from([(6,), (2, 3), (1, 6)])))
    model = Program(shape, [], [])
    tensors = [model.state.clone(), x.clone(), y.clone(), x + 1]
    steps: list[Step] = []
    small = st.integers(0, 3)
    for _ in range(draw(st.integers(3, 12))):
        kind = draw(st.sampled_from(["view", "view", "write", "write", "fresh"]))
        index = draw(st.integers(0, len(tensors) - 1))
        chosen = tensors[index]
        if kind == "view":
            if not chosen.dim() or not chosen.numel():
                continue
            name, dim = draw(st.sampled_from(sorted(VIEWS))), draw(st.integers(0, chosen.dim() - 1))
            step = (kind, name, index, dim, draw(small), draw(small))
        elif kind == "write":
            if shows_twice(chosen) or not chosen.numel():
                continue
            operands = [-1, *(number for number, other in enumerate(tensors) if fits(other, chosen))]
            name, operand = draw(st.sampled_from(sorted(WRITES))), draw(st.sampled_from(operands))
            step = (kind, name, index, operand, draw(small), 0)
        else:
            step = (kind, "", index, 0, 0, 0)
        advance(tensors, step)
        steps.append(step)
    outputs = draw(st.lists(st.integers(0, len(tensors) - 1), min_size=1, max_size=4))
    return Program(shape, steps, outputs), (x, y)


@given(programs(), st.booleans())
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES < 100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
def test_random_programs(drawn: tuple[Program, tuple[Tensor, Tensor]], dynamic: bool) -> None:
    model, args = drawn
    shapes = tuple(dict.fromkeys(range(arg.dim()), Dim.AUTO) for arg in args) if dynamic else None
    program = torch.export.export(model, args, dynamic_shapes=shapes)
    module, mutations = check(program, args)
    eager = Program(model.state.shape, model.steps, model.outputs)
    given_args = [arg.clone() for arg in args]
    wanted = eager(*given_args)
    outputs, finals = run(module, inputs(program, args), [mutation.value for mutation in mutations])
    for left, right in zip(outputs, wanted, strict=True):
        same(left, right)
    ends = {mutation.target: final for mutation, final in zip(mutations, finals, strict=True)}
    starts, stops = (model.state, *args), (eager.state, *given_args)
    for name, start, end in zip(("b_state", "x", "y"), starts, stops, strict=True):
        same(ends.get(name, start), end)
