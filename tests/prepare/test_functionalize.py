"""Functionalization: the functional graph agrees with the captured one for every kind of mutation."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxonnx

from ..functions import Function
from .functionalize_harness import Model, X, Y, check, export

IMAGE = torch.linspace(-1, 1, 72).reshape(2, 3, 3, 4)


def view_of_view(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y[1:, 2:][0].mul_(3)
    return y, y.sum()


def slice_assign(m: Model, x: Tensor) -> Any:
    y = x * 2
    y[:, 1:5:2] = x[:, :2]
    return y


def put_by_mask(m: Model, x: Tensor) -> Any:
    y = x + 0
    y[y > 0] = -1.0
    return y


def put_by_index(m: Model, x: Tensor) -> Any:
    y = x + 0
    y[1:][torch.tensor([0, 2]), torch.tensor([1, 3])] = x[0, :2]
    return y


def copy_into_select_of_slice(m: Model, x: Tensor) -> Any:
    y = torch.zeros_like(x)
    y[1:3].select(1, 2).copy_(x[1:3, 0])
    return y


def fill_diagonal(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y.diagonal(1).fill_(7)
    y.fill_diagonal_(3)
    return y


def buffer_update(m: Model, x: Tensor) -> Any:
    m.state += 1
    m.count.add_(1)
    return x + m.state.sum()


def buffer_row(m: Model, x: Tensor) -> Any:
    m.state.index_copy_(0, m.count.unsqueeze(0), x[:1, :4])
    return m.state * 2


def input_written(m: Model, x: Tensor, y: Tensor) -> Any:
    x.add_(y)
    return x * y


def output_alias_written_later(m: Model, x: Tensor) -> Any:
    y = x.clone()
    row, transposed = y[0], y.t()
    y.mul_(2)
    row.sub_(1)
    return row, transposed, y.view(-1)


def input_alias_returned(m: Model, x: Tensor) -> Any:
    first = x[0]
    x.mul_(3)
    return first


def chunk(m: Model, x: Tensor) -> Any:
    y = x.clone()
    left, right = y.chunk(2, 1)
    left.add_(right)
    return y, right


def chunk_out_of_order(m: Model, x: Tensor) -> Any:
    y = x.clone()
    a, b = y.split([2, 4], 1)
    y.mul_(2)
    b.add_(1)
    c, d = b.tensor_split(2, 0)
    d.sub_(y[:2, 1:5])
    return a, b, c, y


def numpy_transpose(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y.T.add_(torch.arange(4.0))
    y.mT.mul_(2)
    return y


def strided_view_of_flat(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y.view(-1)[::2] = 0
    return y


def detach_in_place(m: Model, x: Tensor) -> Any:
    y = x * 2
    y.detach_()
    y.detach().add_(1)
    return y


def aliases_out_of_order(m: Model, x: Tensor) -> Any:
    y = x.clone()
    a, b, c = y[1:], y[:, 2], y.unsqueeze(0)
    b.mul_(2)
    a.add_(1)
    s = c.sum()
    c[0, 0].fill_(4)
    return a, s, b, y


def expand_assign(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y.copy_(x[:1].expand_as(y))
    y[:2] = torch.arange(6)
    return y


def permuted(m: Model, x: Tensor) -> Any:
    y = x.reshape(2, 2, 6).clone()
    y.permute(2, 0, 1)[1:3].copy_(x.reshape(6, 2, 2)[:2])
    y.transpose(0, 2).swapaxes(1, 0).movedim(0, -1).add_(1)
    return y.movedim((0, 1), (1, 2)), y


def unbind(m: Model, x: Tensor) -> Any:
    y = x.clone()
    a, b, c, d = y.unbind(0)
    a.copy_(b)
    d.add_(c)
    return y, a, c


def cast_on_write(m: Model, x: Tensor) -> Any:
    y = x.to(torch.float16)
    y += x.double()
    z = (x > 0).clone()
    z |= y < 1
    w = x.clone()
    w.gt_(0.5)
    return y, z, w, x.clone().copy_(z)


def integer_add_float_copy(m: Model, x: Tensor) -> Any:
    y = torch.zeros(4, 6, dtype=torch.int64)
    y.copy_(x * 3)
    y.add_(torch.ones(6, dtype=torch.int8))
    y.bitwise_xor_(5)
    return y


def squeezed(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y.unsqueeze(1).squeeze(1).unsqueeze(-1).squeeze().neg_()
    y[None, :, None].flatten(0, 1).unflatten(0, (2, 2, 1))[1].abs_()
    return y


def narrowed(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y.narrow(0, -2, 1).zero_()
    y.narrow(1, 2, 2).mul_(2)
    return y[-1], y


def complex_parts(m: Model, x: Tensor) -> Any:
    y = torch.view_as_complex(x.reshape(4, 3, 2).clone())
    y.real.add_(1)
    y.imag[0].zero_()
    torch.view_as_real(y)[..., 0].mul_(2)
    z = x.reshape(4, 3, 2).clone()
    torch.view_as_complex(z).mul_(1j)
    y.conj().mul_(1j)
    return torch.view_as_real(y), z


def windows(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y.unfold(1, 2, 3).mul_(2)
    y.t().unfold(0, 1, 2).sub_(1)
    return y


def strided(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y.t().as_strided((2, 2), (3, 5), 1).add_(10)
    z = y.as_strided((3,), (2,), 2)
    y.mul_(2)
    return z, y


def bits(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y.view(torch.int32).bitwise_and_(0x7FFFFFFF)
    return y


def maybe_alias(m: Model, x: Tensor) -> Any:
    y = x.clone()
    a, b, c = y.contiguous(), y.to(torch.float32), y.reshape(-1)
    d, e = y.t().reshape(-1), y.t().contiguous()
    a.add_(1)
    b[0] = 9
    c[-1] = 8
    d.mul_(2)
    e.mul_(3)
    return y, a, b, c, d, e


def dropout_and_relu(m: Model, x: Tensor) -> Any:
    y = nn.functional.dropout(x + 1, 0.5, False, inplace=True)
    nn.functional.relu(y, inplace=True)
    return nn.functional.silu(nn.functional.hardswish(y * 2, inplace=True), inplace=True)


def inactive_dropout(m: Model, x: Tensor) -> Any:
    y, z = x.clone(), x * 2
    a, b = nn.functional.dropout(y, 0.5, False), nn.functional.dropout(z[1:], 0.0, True)
    c = nn.functional.dropout(nn.functional.dropout(b.t(), 0.1, False), 0.1, False)
    y.mul_(-1)
    z[:, 2:].add_(3)
    c[0].fill_(7)
    return y, a, z, b, c, nn.functional.dropout(x, 0.5, False)


def random(m: Model, x: Tensor) -> Any:
    y = torch.empty(4, 6).uniform_()
    y[0].normal_()
    y[1].bernoulli_(0.5)
    y[2].exponential_()
    return nn.functional.dropout(x * 2, 0.5, True, inplace=True), y


def scatters(m: Model, x: Tensor) -> Any:
    y = x.clone()
    index = torch.tensor([[0, 1, 2, 0, 1, 2]])
    y.scatter_(0, index, x[:1])
    y.scatter_add_(0, index, x[1:2])
    y.index_fill_(1, torch.tensor([1]), 5)
    y.index_copy_(0, torch.tensor([3]), x[2:3])
    y.index_add_(0, torch.tensor([0, 0]), x[:2])
    y.masked_fill_(x > 1.5, -3)
    y.masked_scatter_(x < -1.5, x[::2].contiguous())
    y[1:].clamp_(-2, 2)
    return y.tril_(1)


def out_arguments(m: Model, x: Tensor) -> Any:
    y = torch.zeros(4, 6)
    torch.add(x, 1, out=y)
    z = torch.zeros(4, 6, dtype=torch.float64)
    torch.mul(x, y, out=z)
    values, indices = torch.zeros(4), torch.zeros(4, dtype=torch.int64)
    torch.max(x, 1, out=(values, indices))
    values.add_(1)
    return y, z, values, indices


def restrided(m: Model, x: Tensor) -> Any:
    y = x.clone()
    view = y[1:]
    y.t_()
    y.add_(1)
    y.unsqueeze_(0).transpose_(1, 2)
    y[0, 0].zero_()
    return y, view


def resized(m: Model, x: Tensor) -> Any:
    y = x.clone()
    row = y[0]
    y.resize_(2, x.numel() // 2)
    y[0, 1:].zero_()
    return y, row, x.clone().resize_as_(torch.empty(x.numel())) + 1


def written_by_overlap(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y[1:] += y[:-1].clone()
    y += y
    return y


def overwritten(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y[0].mul_(5)
    y.zero_()
    y[1].fill_(2)
    return y


def loop(m: Model, x: Tensor) -> Any:
    y = torch.empty(4, 6)
    for row in range(4):
        y[row] = x[row] * row
    return y


def several_results(m: Model, x: Tensor) -> Any:
    values, indices = x.max(1)
    values[1:].mul_(2)
    a, b = torch.broadcast_tensors(values, torch.ones(4))
    values.sub_(1)
    return a, b, indices


def buffer_assigned(m: Model, x: Tensor) -> Any:
    m.state = torch.cat([m.state[:, 1:], x[:3, :1]], 1)
    return m.state + 1


def swap(m: Model, x: Tensor, y: Tensor) -> Any:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return x - y


def unused_write(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y[0].add_(1)
    return x * 2


def channels_last(m: Model, x: Tensor) -> Any:
    y = nn.functional.conv2d(x, torch.ones(2, 3, 1, 1)).contiguous(memory_format=torch.channels_last)
    y.add_(1)
    y.permute(0, 2, 3, 1).view(2, -1).mul_(2)
    return y


def channel_halves(m: Model, x: Tensor) -> Any:
    y = x.clone()
    a, b = y.chunk(2, 1)
    b.mul_(a.shape[1])
    y.view(-1, 2)[:, 0].add_(1)
    y.reshape(x.shape[0] * x.shape[1])[1:].neg_()
    return y, b, a


def expand_dynamic(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y.copy_(x[:1].expand_as(y))
    y[1:] = x[0]
    y.unsqueeze(0).expand(1, -1, -1).squeeze(0).t().neg_()
    a, b = y.split([1, y.shape[0] - 1])
    b.zero_()
    return y, a


def row_maxima(m: Model, x: Tensor) -> Any:
    values, indices = x.max(1)
    values[1:].mul_(2)
    return values, indices


PROGRAMS = [
    (expand_dynamic, (X,)),
    (channel_halves, (X,)),
    (view_of_view, (X,)),
    (slice_assign, (X,)),
    (put_by_mask, (X,)),
    (put_by_index, (X,)),
    (copy_into_select_of_slice, (X,)),
    (fill_diagonal, (X,)),
    (buffer_update, (X,)),
    (buffer_row, (X,)),
    (input_written, (X, Y)),
    (output_alias_written_later, (X,)),
    (input_alias_returned, (X,)),
    (chunk, (X,)),
    (chunk_out_of_order, (X,)),
    (numpy_transpose, (X,)),
    (strided_view_of_flat, (X,)),
    (detach_in_place, (X,)),
    (aliases_out_of_order, (X,)),
    (expand_assign, (X,)),
    (permuted, (X,)),
    (unbind, (X,)),
    (cast_on_write, (X,)),
    (integer_add_float_copy, (X,)),
    (squeezed, (X,)),
    (narrowed, (X,)),
    (complex_parts, (X,)),
    (windows, (X,)),
    (strided, (X,)),
    (bits, (X,)),
    (maybe_alias, (X,)),
    (dropout_and_relu, (X,)),
    (inactive_dropout, (X,)),
    (random, (X,)),
    (scatters, (X,)),
    (out_arguments, (X,)),
    (restrided, (X,)),
    (resized, (X,)),
    (written_by_overlap, (X,)),
    (overwritten, (X,)),
    (loop, (X,)),
    (several_results, (X,)),
    (buffer_assigned, (X,)),
    (swap, (X, Y)),
    (unused_write, (X,)),
    (channels_last, (IMAGE,)),
]
# torch cannot load programs with in-place random fills: one of their arguments is named "from".
LOADABLE = [
    *(view_of_view, buffer_update, chunk_out_of_order, aliases_out_of_order, maybe_alias, permuted, squeezed),
    *(
        dropout_and_relu,
        inactive_dropout,
        out_arguments,
        restrided,
        resized,
        several_results,
        cast_on_write,
        strided,
        narrowed,
    ),
]
DYNAMIC = [
    *(view_of_view, slice_assign, put_by_mask, copy_into_select_of_slice, output_alias_written_later, chunk, narrowed),
    *(strided_view_of_flat, aliases_out_of_order, overwritten, maybe_alias, dropout_and_relu, cast_on_write, bits),
    *(inactive_dropout, restrided, channel_halves, expand_dynamic, row_maxima, windows),
]
NAMES = [function.__name__ for function, _ in PROGRAMS]


@pytest.mark.parametrize(("function", "args"), PROGRAMS, ids=NAMES)
def test_functional_form_agrees_with_eager(function: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    check(export(function, *args), args)


@pytest.mark.parametrize("function", LOADABLE, ids=lambda function: function.__name__)
def test_loaded_programs_without_shared_storages(function: Callable[..., Any]) -> None:
    file = io.BytesIO()
    torch.export.save(export(function, X), file)
    file.seek(0)
    check(torch.export.load(file), (X,))


@pytest.mark.parametrize("function", DYNAMIC, ids=lambda function: function.__name__)
def test_dynamic_shapes(function: Callable[..., Any]) -> None:
    program = export(function, X, dynamic=True)
    check(program, (X,))
    check(program, (torch.linspace(-3, 3, 40).reshape(5, 8),))


@pytest.mark.parametrize("function", [view_of_view, buffer_update, maybe_alias, input_alias_returned])
def test_strict_capture(function: Callable[..., Any]) -> None:
    check(export(function, X, strict=True), (X,))


def lstm(y: Tensor) -> Tensor:
    state, weights = y.new_ones(1, y.shape[0], 4), (torch.eye(4).repeat(4, 1), torch.eye(4).repeat(4, 1))
    return torch.lstm(y, (state, state), weights, False, 1, 0.0, False, False, True)[0]


@pytest.mark.parametrize("function", [lstm, lambda y: torch.cov(y[0])], ids=["lstm", "cov"])
def test_kernels_that_capture_patches_do_not_run_again(function: Callable[[Tensor], Tensor]) -> None:
    def after_write(x: Tensor) -> Any:
        y = nn.functional.dropout(x, 0.5, False)
        y[0].fill_(1)
        return x, function(y)

    x = torch.linspace(-1, 1, 24).reshape(2, 3, 4)
    program = fxonnx.export(Function(after_write).eval(), (x,), dynamic_shapes=({0: "batch", 1: "length"},))
    for sizes in ((2, 3), (3, 5)):
        x = torch.linspace(-1, 1, sizes[0] * sizes[1] * 4).reshape(*sizes, 4)
        for expected, found in zip(after_write(x.clone()), program(x.clone()), strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("part", [slice(-3, -1), slice(1, -1)], ids=["before the end", "between the ends"])
def test_parts_of_a_dropout_that_returns_its_input(part: slice, length: int) -> None:
    """Their sizes are those that the capture has found, for all lengths."""

    def writes(x: Tensor) -> Any:
        y = x.clone()
        z = nn.functional.dropout(y, 0.5, False)
        z[:, part] = 0
        return y, z

    dims = {0: "batch", 1: "length"}
    program = fxonnx.export(Function(writes).eval(), (torch.rand(3, length, 4),), dynamic_shapes=(dims,))
    for sizes in ((1, 5), (2, 1), (1, 1), (3, 2), (2, 3)):
        x = torch.rand(*sizes, 4)
        for expected, found in zip(writes(x), program(x), strict=True):
            torch.testing.assert_close(found, expected)
