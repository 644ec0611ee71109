"""State that forward reads in Python, and state that changes its shape: several calls in a row, each against the model's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxonnx
from fxonnx import CaptureError, StateError


class Program(nn.Module):
    """A model with buffers, the other attributes of ``values``, and a given forward."""

    def __init__(self, forward: Callable[..., Tensor], **values: Any) -> None:
        super().__init__()
        self.own_forward = forward
        for name, value in values.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.own_forward(self, x)


class Layers(nn.Module):
    """Calls its layers one after the other."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def act_norm(m: Any, x: Tensor) -> Tensor:
    if not m.initialized:
        m.loc.copy_(-x.mean(0))
        m.initialized.fill_(True)
    return x + m.loc


def act_norm_of_parameters(m: Any, x: Tensor) -> Tensor:
    if m.initialized.item() == 0:
        initialize(m, x)
        m.initialized.fill_(1)
    return x + m.loc


def initialize(m: Any, x: Tensor) -> None:
    with torch.no_grad():
        m.loc.data.copy_(-x.mean(0))


def codebook(m: Any, x: Tensor) -> Tensor:
    initialize_codebook(m, x)
    found: Tensor = m.embed[torch.cdist(x, m.embed).argmin(1)]
    return found


def initialize_codebook(m: Any, x: Tensor) -> None:
    if m.initted:
        return
    m.embed.data.copy_(x[:4])
    m.initted.data.copy_(torch.Tensor([True]))


def cache(m: Any, x: Tensor) -> Tensor:
    n, p = x.shape[1], int(m.pos)
    m.k[:, p : p + n] = x
    m.pos += n
    k = m.k[:, : p + n]
    return torch.softmax(x @ k.transpose(1, 2), -1) @ k


def narrowed(m: Any, x: Tensor) -> Tensor:
    n = x.shape[1]
    m.k.narrow(1, m.pos.item(), n).copy_(x)
    m.pos += n
    return m.k.sum(1)


def ring(m: Any, x: Tensor) -> Tensor:
    m.k[:, (int(m.pos) + torch.arange(x.shape[1])) % m.k.shape[1]] = x
    m.pos += x.shape[1]
    return m.k.sum(1)


def full_again(m: Any, x: Tensor) -> Tensor:
    if m.pos + 2 > 6:
        m.pos.zero_()
    p = m.pos.item()
    m.k[:, p : p + 2] = x
    m.pos += 2
    return torch.sum(m.k[:, : p + 2], 1)


def queue(m: Any, x: Tensor) -> Tensor:
    out = x @ m.queue.clone()
    ptr, b = int(m.queue_ptr), x.shape[0]
    m.queue[:, ptr : ptr + b] = x.T
    m.queue_ptr[0] = (ptr + b) % 8
    return out


def restarted(m: Any, x: Tensor) -> Tensor:
    if m.n > 1:
        m.n.zero_()
    m.n += 1
    return x * m.n


def warm_up(m: Any, x: Tensor) -> Tensor:
    decay = min(0.9, (1 + float(m.n.mean())) / (10 + float(m.n.mean())))
    m.n += 1
    return x * decay


def repeated(m: Any, x: Tensor) -> Tensor:
    for _ in range(int(m.n)):
        x = x * 1.5 + 1
    m.n += 1
    return x


def compared(m: Any, x: Tensor) -> Tensor:
    y = x * 2 if torch.equal(m.n, torch.ones(())) else x - 1
    m.n += 1
    return y


def chain(m: Any, x: Tensor) -> Tensor:
    y = x * 3 if m.c > 0 else x
    if m.b > 0:
        m.c += 1
    if m.a > 0:
        m.b += 1
    m.a += 1
    return y


def written_parameter(m: Any, x: Tensor) -> Tensor:
    y = x * 2 if m.w.sum() > 2 else x @ m.w.t()
    with torch.no_grad():
        m.w.mul_(0.7)
    return y


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


def count(value: int = 0) -> Tensor:
    return torch.tensor(value)


class Attributes(Program):
    """A model whose tensors are plain attributes."""

    def __init__(self, forward: Callable[..., Tensor], **values: Tensor) -> None:
        super().__init__(forward)
        vars(self).update(values)


def doubled_later(m: Any, x: Tensor) -> Tensor:
    y = x * 2 if m.k > 1 else x
    m.k += 1
    return y


def negated_flag(m: Any, x: Tensor) -> Tensor:
    x = x if m.ready else -x
    if m.ready.item() == 0:
        m.loc.copy_(x[-1])
        m.ready.logical_not_()
    return x + m.loc


def with_equal_constants(m: Any, x: Tensor) -> Tensor:
    m.h += x[0]
    m.n += 1
    return x[0] * torch.ones(3) * m.h * m.n


def trained_norm(m: Any, x: Tensor) -> Tensor:
    return F.batch_norm(x, m.mean, m.var, training=True) + m.var


def rows_in_turn(m: Any, x: Tensor) -> Tensor:
    m.k.select(0, m.pos.item() % 4).add_(x[0])
    m.pos += 1
    return x + m.k.sum(0) / min(int(m.pos), 4)


def raised_to_two(m: Any, x: Tensor) -> Tensor:
    while m.h.sum() < 2.1:
        m.h += 1
    m.h -= x[0].abs()
    return x + m.h


ROWS: Sequence[Any] = [(2, 3)] * 4
CACHED = [(1, 2, 4), (1, 1, 4), (1, 3, 4), (1, 1, 4)]
READ: dict[str, tuple[Callable[[], nn.Module], Sequence[Any]]] = {
    "if-not-initialized": (lambda: Program(act_norm, initialized=torch.tensor(False), loc=zeros(3)), ROWS),
    "initialized-parameter": (
        lambda: Program(
            act_norm_of_parameters, initialized=torch.tensor(0, dtype=torch.uint8), loc=nn.Parameter(zeros(3))
        ),
        ROWS,
    ),
    "codebook": (lambda: Program(codebook, initted=torch.Tensor([False]), embed=zeros(4, 3)), [(5, 3)] * 4),
    "cache": (lambda: Program(cache, k=zeros(1, 16, 4), pos=count()), CACHED),
    "cache-of-layers": (lambda: Layers(*(Program(cache, k=zeros(1, 16, 4), pos=count()) for _ in "ab")), CACHED),
    "narrow": (lambda: Program(narrowed, k=zeros(1, 16, 4), pos=count()), CACHED),
    "ring-buffer": (lambda: Program(ring, k=zeros(1, 5, 4), pos=count()), [(1, 2, 4)] * 5),
    "full-cache": (lambda: Program(full_again, k=zeros(1, 6, 4), pos=count()), [(1, 2, 4)] * 5),
    "queue": (lambda: Program(queue, queue=zeros(3, 8), queue_ptr=torch.zeros(1, dtype=torch.long)), [(2, 3)] * 6),
    "restart": (lambda: Program(restarted, n=count()), [(3,)] * 6),
    "float-of-mean": (lambda: Program(warm_up, n=torch.ones(2)), ROWS),
    "range": (lambda: Program(repeated, n=count(1)), ROWS),
    "equal": (lambda: Program(compared, n=zeros()), ROWS),
    "chain-of-conditions": (lambda: Program(chain, a=count(), b=count(), c=count()), ROWS),
    "parameter": (lambda: Program(written_parameter, w=nn.Parameter(torch.ones(3, 3))), ROWS),
    "tensor-attribute": (lambda: Attributes(doubled_later, k=count()), ROWS),
    "constants-equal-to-a-state": (lambda: Attributes(with_equal_constants, h=torch.ones(3), n=count(0)), ROWS),
    "norm-of-attributes": (lambda: Attributes(trained_norm, mean=zeros(3), var=torch.ones(3)), [(5, 3)] * 4),
    "index-in-an-attribute": (lambda: Attributes(rows_in_turn, k=zeros(4, 3), pos=count()), [(2, 3)] * 6),
    "loop-on-an-attribute": (lambda: Attributes(raised_to_two, h=zeros(3)), ROWS),
    "negated-flag": (lambda: Program(negated_flag, loc=zeros(3), ready=torch.tensor(False)), ROWS),
}


def grown(m: Any, x: Tensor) -> Tensor:
    m.k = torch.cat([m.k, x], 1)
    return torch.softmax(x @ m.k.transpose(1, 2), -1) @ m.k


def truncated(m: Any, x: Tensor) -> Tensor:
    m.k = torch.cat([m.k, x], 1)[:, -4:]
    return x + m.k.sum(1)


def truncated_if_long(m: Any, x: Tensor) -> Tensor:
    m.k = torch.cat([m.k, x], 1)
    if m.k.shape[1] > 4:
        m.k = m.k[:, -4:]
    return x + m.k.sum(1)


def attention(m: Any, x: Tensor) -> Tensor:
    n, past = x.shape[1], m.k.shape[2]
    q, k, v = (x.view(1, n, 2, 2).transpose(1, 2) * scale for scale in (1, 2, 3))
    m.k, m.v = torch.cat([m.k, k], 2), torch.cat([m.v, v], 2)
    mask = torch.ones(n, past + n, dtype=torch.bool).tril(past)
    y = F.scaled_dot_product_attention(q, m.k, m.v, attn_mask=mask).transpose(1, 2).reshape(1, n, 4)
    return x + y + torch.arange(past, past + n)[None, :, None]


def doubled(m: Any, x: Tensor) -> Tensor:
    m.k = torch.cat([m.k, m.k + 1])
    return x * m.k.sum()


def padded(m: Any, x: Tensor) -> Tensor:
    m.k = F.pad(m.k, (0, 1, 0, 2)) + 1
    return x * m.k.sum()


def shrunk(m: Any, x: Tensor) -> Tensor:
    y = x * m.k.sum()
    m.k = m.k[1:]
    return y


def if_not_empty(m: Any, x: Tensor) -> Tensor:
    if m.k.numel() > 0:
        x = x + m.k.mean(0)
    m.k = torch.cat([m.k, x])
    return x


def divided_by_length(m: Any, x: Tensor) -> Tensor:
    m.k = torch.cat([m.k, x])
    return x + m.k.sum(0) / len(m.k)


def grown_if_positive(m: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:
        m.k = torch.cat([m.k, x])
    return x + m.k.sum(0)


def two_that_grow(m: Any, x: Tensor) -> Tensor:
    m.k, m.v = torch.cat([m.k, x]), torch.cat([m.v, x * 2])
    return torch.softmax(x @ m.k.T, -1) @ m.v


def complex_cache(m: Any, x: Tensor) -> Tensor:
    m.k = torch.cat([m.k, torch.complex(x, x * 2)])
    return torch.add(m.k.real.sum(0), m.k.imag.mean())


def last_rows(m: Any, x: Tensor) -> Tensor:
    m.k = torch.cat([m.k, x])[-5:]
    return torch.softmax(x @ m.k.T, -1) @ m.k


GROWING: dict[str, tuple[Callable[[], nn.Module], Sequence[Any]]] = {
    "empty": (lambda: Program(grown, k=zeros(1, 0, 4)), [(1, 2, 4)] * 4),
    "dynamic-input": (lambda: Program(grown, k=zeros(1, 0, 4)), CACHED),
    "truncated": (lambda: Program(truncated, k=zeros(1, 0, 4)), [(1, 1, 4)] * 6),
    "truncated-if-long": (lambda: Program(truncated_if_long, k=zeros(1, 0, 4)), [(1, 1, 4)] * 6),
    "attention": (lambda: Program(attention, k=zeros(1, 2, 0, 2), v=zeros(1, 2, 0, 2)), CACHED),
    "doubled": (lambda: Program(doubled, k=torch.ones(2)), ROWS),
    "two-axes": (lambda: Program(padded, k=torch.ones(2, 3)), ROWS),
    "shrunk": (lambda: Program(shrunk, k=torch.arange(8.0)), ROWS),
    "last-rows": (lambda: Layers(*[Program(last_rows, k=zeros(0, 3))] * 2), [(4, 3)] * 3),
    "if-not-empty": (lambda: Program(if_not_empty, k=zeros(0, 3)), ROWS),
    "length-as-number": (lambda: Program(divided_by_length, k=zeros(0, 3)), ROWS),
    "grown-if-positive": (lambda: Program(grown_if_positive, k=zeros(0, 3)), ROWS),
    "two-that-grow": (lambda: Program(two_that_grow, k=zeros(3, 3), v=zeros(3, 3)), ROWS),
    "complex": (lambda: Program(complex_cache, k=torch.zeros(0, 3, dtype=torch.complex64)), ROWS),
}


def swapped(m: Any, x: Tensor) -> Tensor:
    m.a, m.b = m.b, m.a + x
    return m.a * 2 + m.b


def exchanged(m: Any, x: Tensor) -> Tensor:
    m.a, m.b = m.b, m.a
    return m.a * 2 + m.b + x


def assigned(m: Any, x: Tensor) -> Tensor:
    m.c = m.c * 0.5 + x
    return x - m.c


def added(m: Any, x: Tensor) -> Tensor:
    m.a += x
    return torch.mul(m.b, 2)


def two_names() -> nn.Module:
    model = Program(added, a=zeros(3))
    model.register_buffer("b", model.a)
    return model


def shared(*, persistent: bool = True) -> nn.Module:
    layer = Program(assigned)
    layer.register_buffer("c", zeros(3), persistent=persistent)
    return Layers(layer, layer)


ASSIGNED: dict[str, tuple[Callable[[], nn.Module], Sequence[Any]]] = {
    "swapped": (lambda: Program(swapped, a=zeros(3), b=torch.ones(3)), [(3,)] * 4),
    "exchanged": (lambda: Program(exchanged, a=zeros(3), b=torch.ones(3)), [(3,)] * 4),
    "of-layers": (lambda: Layers(*(Program(assigned, c=zeros(3)) for _ in "ab")), [(3,)] * 4),
    "two-names": (two_names, [(3,)] * 4),
    "shared-module": (shared, [(3,)] * 4),
    "shared-module-with-a-buffer-that-is-not-persistent": (lambda: shared(persistent=False), [(3,)] * 4),
}


def bias_corrected(m: Any, x: Tensor) -> Tensor:
    m.step += 1
    m.mean = m.mean * 0.9 + x
    return m.mean / (1 - 0.9**m.step)


def indexed(m: Any, x: Tensor) -> Tensor:
    y: Tensor = x * m.table[m.step]
    m.step = (m.step + 1) % 3
    return y


def halved(m: Any, x: Tensor) -> Tensor:
    m.rate *= 0.5
    return x * m.rate


def first_call(m: Any, x: Tensor) -> Tensor:
    y = x * 2 if m.first else x
    m.first = False
    return y


def counted_if_positive(m: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:
        m.step += 1
    return x * m.step


def every_other(m: Any, x: Tensor) -> Tensor:
    if m.step % 2 == 0:
        x = x * 3
    m.step += 1
    return x


NUMBERS: dict[str, tuple[Callable[[], nn.Module], Sequence[Any]]] = {
    "arithmetic": (lambda: Layers(*(Program(bias_corrected, step=0, mean=zeros(3)) for _ in "ab")), [(3,)] * 4),
    "index": (lambda: Program(indexed, step=0, table=torch.arange(1.0, 4.0)), [(3,)] * 5),
    "float": (lambda: Program(halved, rate=1.0), ROWS),
    "bool": (lambda: Program(first_call, first=True), ROWS),
    "in-a-branch": (lambda: Program(counted_if_positive, step=0), ROWS),
    "remainder": (lambda: Program(every_other, step=0), ROWS),
}

TABLES = {"read": READ, "growing": GROWING, "assigned": ASSIGNED, "numbers": NUMBERS}
CASES = [pytest.param(*case, id=f"{kind}-{name}") for kind, table in TABLES.items() for name, case in table.items()]


def attributes(model: nn.Module) -> dict[str, Any]:
    """The numbers and tensors in the attributes of a model."""
    found = {name: repr(vars(module)) for name, module in model.named_modules()}
    return {**found, **{name: tensor.tolist() for name, tensor in model.state_dict().items()}}


@pytest.mark.parametrize(("build", "shapes"), CASES)
def test_calls_in_a_row_are_those_of_the_model(build: Any, shapes: Sequence[Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build().eval()
    inputs = [torch.randn(shape) * 3 + 0.5 for shape in shapes]
    dynamic = {axis: f"n{axis}" for axis, sizes in enumerate(zip(*shapes, strict=True)) if len({*sizes}) > 1}
    before = attributes(model)
    program = fxonnx.export(model, (inputs[0],), state="io", dynamic_shapes=(dynamic,) if dynamic else None)
    assert attributes(model) == before
    program.save(tmp_path / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    file = onnxruntime.InferenceSession(tmp_path / "model.onnx", options)
    session, own = program.stateful_session(), copy.deepcopy(model)
    names, state = [value.name for value in file.get_outputs()], dict[str, Any]()
    for x in inputs:
        with torch.no_grad():
            expected = own(x)
        outputs = dict(zip(names, file.run(None, {"x": x.numpy(), **state}), strict=True))
        state = {str(pair.input): outputs[pair.output] for pair in program.interface.states}
        np.testing.assert_allclose(outputs[names[0]], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(session(x)[0], expected, rtol=1e-4, atol=1e-5)
    assert fxonnx.verify(tmp_path / "model.onnx", model, (inputs[0],))


def test_a_growing_state_has_a_dynamic_dim() -> None:
    x = torch.ones(1, 2, 4)
    program = fxonnx.export(Program(grown, k=zeros(1, 0, 4)).eval(), (x,), state="io", verify="auto")
    shapes = [str(value.shape) for value in (*program.model.graph.inputs, *program.model.graph.outputs)]
    assert shapes[1::2] == ["[1,k_1,4]", "[1,k_1 + 2,4]"]
    session = program.stateful_session()
    session.reset({"k": torch.ones(1, 3, 4)})
    session(x)
    assert session.state["k"].shape == (1, 5, 4)
    with pytest.raises(fxonnx.ArgumentError, match=r"k\.in: expected shape \[1, k_1, 4\], got \[1, 3, 5\]"):
        session.reset({"k": torch.ones(1, 3, 5)})


def outside(m: Any, x: Tensor) -> Tensor:
    y = {0: x, 1: x * 2}[int(m.n)]
    m.n += 1
    return y


def of_another_dtype(m: Any, x: Tensor) -> Tensor:
    m.k = m.k.double() + x
    return x


def of_another_rank(m: Any, x: Tensor) -> Tensor:
    m.k = m.k.unsqueeze(0) + x
    return x


def without_value(m: Any, x: Tensor) -> Tensor:
    y = x + m.k
    m.k = None
    return y


def of_the_size_of_an_input(m: Any, x: Tensor) -> Tensor:
    y = x + m.k
    m.k = torch.cat([m.k, x])
    return y


def divided_names(m: Any, x: Tensor) -> Tensor:
    m.a = m.a + x
    return m.b + x


def checked_length(m: Any, x: Tensor) -> Tensor:
    n = int((x > 0).sum())
    torch._check(n <= m.k.shape[0])
    y = x + m.k[:n].sum(0)
    m.k = torch.cat([m.k, x[None]])
    return y


def listed(m: Any, x: Tensor) -> Tensor:
    m.history.append(x)
    return torch.stack(m.history).sum(0)


def int_becomes_float(m: Any, x: Tensor) -> Tensor:
    m.rate = m.rate * 0.5
    return x * m.rate


def equal_in_the_first_calls(m: Any, x: Tensor) -> Tensor:
    """A plain attribute that changes from the third call on."""
    y = x + m.last if m.n > 3 else x
    m.last = m.last * 0.5 + x * (m.n > 1)
    m.n += 1
    return y


def with_plain_tensor() -> nn.Module:
    model = Program(equal_in_the_first_calls, n=count())
    vars(model)["last"] = zeros(3)
    return model


def divided() -> nn.Module:
    model = Program(divided_names, a=zeros(3))
    model.register_buffer("b", model.a)
    return model


REFUSED: dict[str, tuple[Callable[[], nn.Module], type[Exception], str]] = {
    "dtype": (
        lambda: Program(of_another_dtype, k=zeros(3)),
        StateError,
        r"'k': its dtype becomes torch.float64 instead of torch.float32 at .*:\d+ in forward",
    ),
    "rank": (
        lambda: Program(of_another_rank, k=zeros(3)),
        StateError,
        r"'k': its rank becomes 2 instead of 1 at .*:\d+",
    ),
    "none": (lambda: Program(without_value, k=zeros(3)), StateError, r"'k': it becomes None"),
    "size-of-an-input": (
        lambda: Program(of_the_size_of_an_input, k=zeros(3)),
        StateError,
        r"forward changes the shape of 'k'(?s:.*)at: .*y = x \+ m\.k",
    ),
    "check-of-a-number": (
        lambda: Program(checked_length, k=torch.zeros(3, 3)),
        StateError,
        r"'k', and the program checks a number that it computes, by the size(?s:.*)at: .*torch\._check\(n <=",
    ),
    "two-names": (divided, StateError, r"'a': it is also 'b' before the call only at .*:\d+ in forward"),
    "list": (lambda: Program(listed, history=[]), StateError, r"only numbers(?s:.*)'history'(?s:.*)m\.history\.append"),
    "equal-in-the-first-calls": (with_plain_tensor, StateError, r"only numbers(?s:.*)'last'(?s:.*)m\.last = m\.last"),
    "type-of-a-number": (lambda: Program(int_becomes_float, rate=1), StateError, r"of type float instead of int"),
    "key-of-a-dict": (
        lambda: Program(outside, n=count()),
        CaptureError,
        r"at: .*int\(m\.n\)(?s:.*)depends on \"n\": .* or state=\"outputs\" to make it a constant",
    ),
}


@pytest.mark.parametrize(("build", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_other_state_is_refused_with_its_line(build: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        fxonnx.export(build().eval(), (torch.randn(3),), state="io")


@pytest.mark.parametrize("state", ["warn", "outputs"])
@pytest.mark.parametrize(
    "build", [READ["cache"][0], GROWING["empty"][0], ASSIGNED["exchanged"][0], ASSIGNED["of-layers"][0]]
)
@pytest.mark.filterwarnings("ignore:forward writes")
def test_without_state_inputs_each_call_starts_from_the_exported_state(build: Any, state: Any) -> None:
    model = build().eval()
    x = torch.randn(1, 2, 4) if hasattr(model, "k") else torch.randn(3)
    program = fxonnx.export(model, (x,), state=state, verify=True)
    for given in (x, x * 2, x - 1):
        own = copy.deepcopy(model)
        expected = [own(given), *(own.state_dict()[pair.name] for pair in program.interface.states)]
        for result, value in zip(program(given), expected, strict=True):
            torch.testing.assert_close(result, value, rtol=1e-4, atol=1e-5)
