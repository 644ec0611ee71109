"""Operators whose kernels specialize, narrow or remove a dynamic size, also through einops, writes, squeezes and indices."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from einops import einsum, pack, rearrange, reduce, repeat, unpack
from einops.layers.torch import Rearrange, Reduce
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils import _pytree as pytree

import fxonnx

from ..functions import Function
from ..saved import run_from_file


@dataclass(frozen=True)
class Case:
    """A function of ``x``, whose dims ``n`` and ``m`` are dynamic."""

    name: str
    function: Callable[[torch.Tensor], Any]
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return self.name


_WINDOW = torch.hann_window(8)


def _spectra(x: torch.Tensor) -> torch.Tensor:
    return torch.stft(torch.cat([x, x, x, x, x], -1), 8, 2, 8, _WINDOW, return_complex=True)


def _filtered(x: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch.istft(_spectra(x) * 0.5, 8, 2, 8, _WINDOW, **options)


def _windows(x: torch.Tensor) -> torch.Tensor:
    """Windows of 2 times 2 elements of images whose sizes are products."""
    x = F.interpolate(x, scale_factor=2.0)
    batch, channels, height, width = x.shape
    x = x.reshape(batch, channels, height // 2, 2, width // 2, 2).transpose(3, 4)
    return F.silu(x.contiguous().transpose(2, 3)).transpose(2, 3)


def _cropped(x: torch.Tensor) -> torch.Tensor:
    """Images of which some columns are cropped, unless their number is a multiple of 4."""
    _, height, width, _ = x.shape
    padded = F.pad(x, (0, 0, 0, (4 - width % 4) % 4, 0, (4 - height % 4) % 4))
    return padded.roll((1, 1), (1, 2))[:, :height, :width]


CASES = (
    Case("reshape_of_a_crop", lambda x: _cropped(x).reshape(x.shape[0], -1, 3) * 2, (2, "n", "m", 3)),
    Case("reshape_of_a_crop_to_sizes", lambda x: _cropped(x).reshape(2, x.shape[1] * x.shape[2], 3), (2, "n", "m", 3)),
    Case("flatten_of_a_crop", lambda x: _cropped(x).flatten(1, 2).sum(-1), (2, "n", "m", 3)),
    Case("ravel_of_a_crop", lambda x: _cropped(x).ravel() * 2, ("n", 2, "m", 3)),
    Case("view_of_a_crop", lambda x: _cropped(x).transpose(1, 3).view(2, 3, 1, -1, x.shape[1]), (2, "n", "m", 3)),
    Case("max_pool1d", lambda x: F.max_pool1d(x, 2, ceil_mode=True), (2, 3, "n")),
    Case("max_pool1d_padded", lambda x: F.max_pool1d(x, 3, 2, 1), (3, "n")),
    Case("max_pool1d_indices", lambda x: F.max_pool1d(x, 3, 1, 1, return_indices=True), (2, 3, "n")),
    Case("take_along_dim", lambda x: torch.take_along_dim(x, x.argmax(1, keepdim=True), 1), ("n", "m")),
    Case(
        "take_along_dim_broadcast", lambda x: torch.take_along_dim(x, torch.tensor([[[1], [0], [1]]]), -1), ("n", 3, 2)
    ),
    Case("take_along_dim_flat", lambda x: torch.take_along_dim(x, x.argmax().reshape(1)), ("n", "m")),
    # Operands that are parts of one tensor, of which torch's decompositions compare the memory.
    Case("pad_sequence_of_parts", lambda x: pad_sequence([x[0], x[-1, :2]], True, -1.0), ("n", 3)),
    Case("pad_sequence_of_slices", lambda x: pad_sequence([x, x[: x.shape[0] // 2]]), ("n", 3)),
    Case("kron_of_parts", lambda x: torch.kron(x[:2], x[-2:]), ("n", 3)),
    Case("bilinear_of_parts", lambda x: F.bilinear(x[:2], x[-2:], torch.ones(2, 3, 3)), ("n", 3)),
    Case("logspace", lambda x: x * torch.logspace(-1, 1.5, x.shape[0], 2.0)[:, None], ("n", 3)),
    Case("logspace_float64", lambda x: x * torch.logspace(0, 2, x.shape[0], dtype=torch.float64)[:, None], ("n", 3)),
    Case("fftfreq", lambda x: x * torch.fft.fftfreq(x.shape[0], 0.5)[:, None], ("n", 3)),
    Case("fftfreq_float64", lambda x: x * torch.fft.fftfreq(x.shape[1], dtype=torch.float64), (3, "n")),
    Case("rfftfreq", lambda x: torch.fft.rfft(x).abs() * torch.fft.rfftfreq(x.shape[1], d=0.1), (3, "n")),
    Case("adaptive_max_pool2d_kept", lambda x: F.adaptive_max_pool2d(x, (2, None)), (2, 3, "n", "m")),
    Case("adaptive_max_pool3d_kept", lambda x: F.adaptive_max_pool3d(x, (None, 3, None)), (2, 3, "n", 4, "m")),
    Case("cdist", lambda x: torch.cdist(x, x[:, :1] + 1), (2, "n", 3)),
    Case("cdist_p1", lambda x: torch.cdist(x, x, p=1.0), ("n", 3)),
    Case("fill_diagonal", lambda x: (x @ x.T).fill_diagonal_(0), ("n", 3)),
    Case("fill_diagonal_of_rows", lambda x: (x * 1).fill_diagonal_(2.5), ("n", "m")),
    Case("fill_diagonal_of_a_column", lambda x: (x * 1).fill_diagonal_(-1), ("n", 1)),
    Case("kron", lambda x: torch.kron(x, torch.tensor([[1.0, 2], [3, 4]])), ("n", "m")),
    Case("kron_of_ranks", lambda x: torch.kron(torch.tensor([1.0, 2]), x), ("n", 2, "m")),
    Case("isin", lambda x: torch.isin(x.round(), torch.tensor([[1.0, 2], [-1, 5]])), ("n", "m")),
    Case("isin_inverted", lambda x: torch.isin(x.round(), x[0].round(), invert=True), ("n", "m")),
    Case("isin_of_few", lambda x: torch.isin(torch.tensor([1.0, -2, 7]), x.round()), ("n", "m")),
    Case("isin_of_none", lambda x: torch.isin(x, x[:, :0]), ("n", "m")),
    Case("cartesian_prod", lambda x: torch.cartesian_prod(x, torch.arange(3.0), x * 2), ("n",)),
    Case("linspace", lambda x: torch.linspace(-1, 1, x.shape[0]) * x, ("n",)),
    Case("linspace_backwards", lambda x: torch.linspace(start=3.0, end=-2, steps=x.shape[0] + 1), ("n",)),
    Case("linspace_double", lambda x: torch.linspace(0, 1, x.shape[0] * 2, dtype=torch.float64), ("n",)),
    Case("linspace_empty", lambda x: torch.linspace(0, 1, x.shape[0] - 1), ("n",)),
    Case(
        "affine_grid",
        lambda x: F.affine_grid(torch.arange(12.0).reshape(2, 2, 3), [2, 1, *x.shape], align_corners=False),
        ("n", "m"),
    ),
    Case(
        "affine_grid_corners",
        lambda x: F.affine_grid(x.mean(2, True).expand(2, 2, 3), (2, 1, 3, x.shape[2]), align_corners=True),
        (2, 2, "m"),
    ),
    Case(
        "affine_grid_3d",
        lambda x: F.affine_grid(torch.arange(12.0).reshape(1, 3, 4), [1, 1, 2, *x.shape], align_corners=False),
        ("n", "m"),
    ),
    Case("avg_pool2d_global", lambda x: F.avg_pool2d(x, x.shape[2:]), (1, 2, "n", "m")),
    Case("max_pool2d_global", lambda x: F.max_pool2d(x, kernel_size=x.size()[2:]), (1, 2, "n", "m")),
    Case("as_tensor", lambda x: x * torch.as_tensor(5 * x.shape[0] / 4) + torch.as_tensor(x.shape[1]), ("n", "m")),
    Case("as_tensor_of_a_condition", lambda x: x * torch.as_tensor(x.shape[0] > 3, dtype=torch.float32), ("n", "m")),
    Case("a_bound_of_sizes", lambda x: x[: torch.ceil(torch.as_tensor(3 * x.shape[0] / 4)).long()], ("n", "m")),
    Case("avg_pool2d_parity", lambda x: F.avg_pool2d(x, 2, padding=[n % 2 for n in x.shape[2:]]), (2, 3, "n", "m")),
    Case("avg_pool1d_parity", lambda x: F.avg_pool1d(x, 2, 1, x.shape[-1] % 2), (2, 3, "n")),
    Case("max_pool2d_parity", lambda x: F.max_pool2d(x, (1, 2), padding=(0, x.shape[3] % 2)), (2, 3, "n", "m")),
    Case("avg_pool2d_blocks", lambda x: F.avg_pool2d(x, (max(1, x.shape[2] // 3), 1)), (2, 3, "n", "m")),
    Case("max_pool1d_blocks", lambda x: F.max_pool1d(x, 1 + x.shape[-1] // 8, 1 + x.shape[-1] // 8), (2, 3, "n")),
    Case("avg_pool3d_blocks", lambda x: F.avg_pool3d(x, (1, 2, 1 + x.shape[-1] // 8)), (1, 2, 2, 4, "n")),
    Case("avg_pool1d_global", lambda x: F.avg_pool1d(x, x.size(-1)), (1, 2, "n")),
    Case("max_pool3d_global", lambda x: F.max_pool3d(x, (2, x.size(3), x.size(4))), (1, 2, 2, "n", "m")),
    Case("gaussian_nll_loss", lambda x: F.gaussian_nll_loss(x, x + 1, x.abs() + 0.1, full=True), ("n", "m")),
    Case("gaussian_nll_loss_of_rows", lambda x: F.gaussian_nll_loss(x, -x, x.abs().amax(1)), ("n", "m")),
    Case("fft_of_a_length", lambda x: torch.view_as_real(torch.fft.fft(x, n=8)), ("n", "m")),
    Case("rfft_of_lengths", lambda x: torch.view_as_real(torch.fft.rfft2(x, s=(4, 6))), (2, "n", "m")),
    Case("irfft_of_lengths", lambda x: torch.fft.irfftn(x, s=(4, x.shape[1]), dim=(0, -1)), ("n", "m")),
    Case("istft_to_the_length_of_the_input", lambda x: _filtered(x, length=x.shape[-1]), (2, "n")),
    Case("istft_to_another_length", lambda x: _filtered(x, length=2 * x.shape[-1] + 3), ("m", "n")),
    Case("istft_of_a_method", lambda x: _spectra(x).istft(8, 2, 8, _WINDOW, length=x.shape[-1]), ("m", "n")),
    Case("istft_without_a_length", lambda x: _filtered(x), (2, "n")),
    Case("spectra_of_windows", lambda x: torch.view_as_real(torch.fft.rfft2(_windows(x))), (1, 2, "n", "m")),
    Case("filtered_windows", lambda x: torch.fft.irfft2(torch.fft.rfft2(_windows(x)) * 2, s=(2, 2)), (1, 2, "n", "m")),
    Case("scaled_size", lambda x: F.interpolate(x, scale_factor=2.0) + F.interpolate(x, scale_factor=2), (1, 1, "n")),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_correct_at_every_size_without_constraint(case: Case) -> None:
    def example(**sizes: int) -> torch.Tensor:
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in case.shape]
        return torch.linspace(-2, 3, torch.Size(shape).numel()).reshape(shape)

    model = Function(case.function).eval()
    dims = {axis: dim for axis, dim in enumerate(case.shape) if isinstance(dim, str)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = fxonnx.export(model, (example(n=5, m=4),), dynamic_shapes={"x": dims})
    assert program.record.constraints == ()
    for n, m in ((5, 4), (1, 1), (2, 3), (31, 7), (1, 30)):
        x = example(n=n, m=m)
        expected = torch.utils._pytree.tree_leaves(model(x))
        for ours, theirs in zip(program(x), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_fold_of_a_part_of_an_axis() -> None:
    model = Function(lambda x: F.fold(x[..., :9], 5, 2, padding=1, stride=2)).eval()
    with pytest.warns(UserWarning, match="n >= 9"):
        program = fxonnx.export(model, (torch.rand(2, 16, 9),), dynamic_shapes={"x": {0: "b", 2: "n"}})
    for shape in ((2, 16, 9), (3, 16, 14), (1, 16, 11)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x)[0], model(x))


def test_a_window_larger_than_the_input_is_a_constraint() -> None:
    model = Function(lambda x: F.max_pool1d(x, 4)).eval()
    with pytest.warns(UserWarning, match="n >= 4"):
        program = fxonnx.export(model, (torch.rand(2, 3, 9),), dynamic_shapes={"x": {2: "n"}})
    assert [str(constraint.text) for constraint in program.record.constraints] == ["n >= 4"]


# Models with einops, which caches its results by shape, keep their dims dynamic.


def _attention(x: torch.Tensor) -> torch.Tensor:
    query, key, value = (rearrange(one, "b n (h d) -> b h n d", h=2) for one in x.chunk(3, -1))
    weights = einsum(query, key, "b h i d, b h j d -> b h i j").softmax(-1)
    return rearrange(weights @ value, "b h n d -> b n (h d)")


def _broadcast(x: torch.Tensor) -> torch.Tensor:
    return x + repeat(x[0, 0], "d -> b n d", b=x.shape[0], n=x.shape[1]) + reduce(x, "b n d -> b () ()", "max")


def _packed(x: torch.Tensor) -> torch.Tensor:
    joined, shapes = pack([x, x[:, 0]], "b * d")
    return unpack(joined * 2, shapes, "b * d")[0]


def _selected(x: torch.Tensor) -> torch.Tensor:
    rows = x[(x[:, 0, 0] > 0.5).nonzero()[:, 0]]
    return rearrange(rows, "b n (h d) -> (b h) n d", h=3)


@pytest.mark.parametrize("function", [_attention, _broadcast, _packed, _selected], ids=lambda one: one.__name__)
def test_functions(function: Callable[..., Any]) -> None:
    _check(Function(function).eval())


def test_layers() -> None:
    _check(nn.Sequential(Rearrange("b n (h d) -> b n h d", h=3), Reduce("b n h d -> b n d", "mean")).eval())


def _check(model: nn.Module) -> None:
    program = fxonnx.export(model, (torch.rand(4, 5, 12),), dynamic_shapes=({0: "batch", 1: "length"},))
    assert not [constraint for constraint in program.record.constraints if "==" in str(constraint)]
    for sizes in ((4, 5, 12), (2, 7, 12), (7, 1, 12)):
        x = torch.rand(*sizes)
        torch.testing.assert_close(program(x)[0], model(x))


# Writes to a part of a tensor, with examples whose dynamic dims have size 1: the dims stay dynamic.


Write = Callable[[Tensor, Tensor], object]

WRITES: Mapping[str, Write] = {
    "assignment": lambda part, x: part.copy_(x),
    "of another layout": lambda part, x: part.transpose(1, 2).copy_(x.transpose(1, 2)),
    "of one channel": lambda part, x: part.copy_(x[:, :1]),
    "of the last step": lambda part, x: part[:, :, -1].copy_(x[:, :, 0]),
    "of another dtype": lambda part, x: part.copy_(x.double()),
    "sum": lambda part, x: part.add_(x),
    "bounds": lambda part, x: part.clamp_(0, 1),
    "exponential": lambda part, x: part.exp_(),
    "power": lambda part, x: part.pow_(2),
    "running sum": lambda part, x: part.cumsum_(1),
    "triangle": lambda part, x: part.tril_(),
    "mask": lambda part, x: part.masked_fill_(x > 0.5, 0.0),
}


@pytest.mark.filterwarnings("error:the model cannot be exported for all requested sizes")
@pytest.mark.parametrize(("batch", "length"), [(1, 8), (2, 1), (1, 1)])
@pytest.mark.parametrize("name", WRITES)
def test_writes_to_a_slice(name: str, batch: int, length: int) -> None:
    def function(x: Tensor) -> Tensor:
        whole = x.new_full((x.shape[0], x.shape[1], x.shape[2], 20), 0.3)
        WRITES[name](whole[..., 2:18], x)
        return whole * 2

    model = Function(function).eval()
    example = torch.rand(batch, 4, length, 16)
    program = fxonnx.export(model, (example,), dynamic_shapes=({0: "batch", 2: "length"},))
    assert list(map(str, program.model.graph.inputs[0].shape)) == ["batch", "4", "length", "16"]
    for x in (torch.rand(3, 4, 5, 16), torch.rand(1, 4, 2, 16), example):
        torch.testing.assert_close(program(x)[0], model(x))


# Results whose rank depends on sizes: ``squeeze`` of a dynamic axis removes it at one element.


SIZES = ((2, 6), (1, 6), (3, 1), (1, 1), (1, 5), (4, 7))

WEIGHT = torch.linspace(-1, 1, 4)


class Scores(nn.Module):
    """One score per row."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.linear(x).squeeze())


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    z = y.squeeze(0)
    y.add_(1)
    return z


FUNCTIONS: dict[str, Callable[[Tensor], Any] | nn.Module] = {
    "squeeze of an axis": lambda x: x.squeeze(0),
    "squeeze of all axes": lambda x: x[:, :, :1].squeeze(),
    "squeeze of several axes": lambda x: x.sum(2, keepdim=True).squeeze((0, 2)),
    "scores": Scores(),
    "operators after the squeeze": lambda x: F.relu(x.squeeze(0) * WEIGHT + 1).half().float(),
    "operators in place": lambda x: x.squeeze(0).mul(2).add_(1),
    "write to the tensor that was squeezed": in_place,
    "squeeze of a squeezed tensor": lambda x: x.unsqueeze(3).squeeze(-1).squeeze(0),
    "integers": lambda x: x.argmax(-1).squeeze(),
    "several results": lambda x: (x.squeeze(0), {"a": x.squeeze(1) * 2, "b": x.squeeze(0).sum()}),
    "one result twice": lambda x: (lambda y: (y, y))(x.squeeze(0)),
    "results of other kinds": lambda x: (x.squeeze(0).abs(), x.mean(2)),
}


@pytest.mark.parametrize(
    ("name", "rows", "opset"),
    [(name, 2, 20) for name in FUNCTIONS] + [(name, 1, opset) for opset in (11, 13) for name in (*FUNCTIONS,)[:5]],
)
def test_rank_of_a_result_depends_on_sizes(name: str, rows: int, opset: int) -> None:
    function = FUNCTIONS[name]
    model = function if isinstance(function, nn.Module) else Function(function)
    program = fxonnx.export(
        model.eval(), (torch.randn(rows, 6, 4),), dynamic_shapes=({0: "b", 1: "t"},), opset_version=opset
    )
    assert not program.record.capture.limits.constraints
    onnx.checker.check_model(program.model_proto, full_check=True)
    run_from_file(program)
    for size in SIZES:
        x = torch.randn(*size, 4)
        with torch.no_grad():
            expected = pytree.tree_leaves(model(x))
        for have, want in zip(pytree.tree_leaves(program(x)), expected, strict=True):
            assert have.shape == want.shape
            torch.testing.assert_close(have, want)


def test_a_guard_is_not_on_a_result_of_no_rank() -> None:
    model = Function(lambda x: (x * 2 if x.shape[1] % 2 == 0 else x).sum((1, 2)).squeeze())
    program = fxonnx.export(model, (torch.randn(2, 6, 4),), dynamic_shapes=({0: "b", 1: "t"},))
    run_from_file(program)
    for rows in (1, 3):
        x = torch.randn(rows, 4, 4)
        (found,) = program(x)
        assert found.shape == model(x).shape
        torch.testing.assert_close(found, model(x))
    with pytest.raises(fxonnx.ExportError, match="t % 2 == 0"):
        program(torch.randn(1, 5, 4))


def test_a_rank_on_which_the_model_depends_stays_a_limit() -> None:
    model = Function(lambda x: (x.squeeze(0), x.squeeze(0).sum(0)))
    program = fxonnx.export(model, (torch.randn(2, 6, 4),), dynamic_shapes=({0: "b"},))
    assert [str(one.expression) for one in program.record.capture.limits.constraints] == ["Ne(b, 1)"]


# Indices that are integers in tensors, alone and in sequences: read, written, next to other indices.


def _assign(index: Callable[[Tensor], Any], value: Any = 5.0) -> Callable[[Tensor, Tensor], Tensor]:
    def assigned(x: Tensor, t: Tensor) -> Tensor:
        changed = x.clone()
        changed[index(t)] = value
        return changed

    return assigned


def _rows_and_columns(x: Tensor, t: Tensor) -> Tensor:
    """UDOP's: the rows of a matrix of indices, unzipped to two tuples of numbers."""
    rows, columns = zip(*torch.stack([t, t.flip(0)], -1), strict=True)
    inside = torch.full_like(x, True).bool()
    inside[rows, columns] = False
    return inside


INDEXED: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "a number": lambda x, t: x[t[0]],
        "a number and a list": lambda x, t: x[t[0], [0, 1]],
        "a list and a number": lambda x, t: x[[0, 1], t[0]],
        "a number and a mask": lambda x, t: x[None].expand(4, -1, -1)[t[0], x > 0],
        "a mask and a number": lambda x, t: x[x[:, 0] > 0, t[0]],
        "a number, all and a list": lambda x, t: x[None].expand(4, -1, -1)[t[0], :, [0, 1]],
        "a list, an ellipsis and a number": lambda x, t: x[None].expand(4, -1, -1)[[0, 3], ..., t[0]],
        "a new axis, a number and a tensor": lambda x, t: x[None, t[0], t],
        "lists of numbers": lambda x, t: x[[t[0], t[1]], (t[1], 2)],
        "nested lists of numbers": lambda x, t: x[:, [[t[0]], [t[1]]]],
        "assignment to a row": _assign(lambda t: t[0]),
        "assignment to a column": _assign(lambda t: (slice(None), t[1])),
        "assignment to an element": _assign(lambda t: (t[0], t[1])),
        "assignment to the last axis": _assign(lambda t: (..., t[1]), torch.tensor(7.0)),
        "assignment to elements of a row": _assign(lambda t: (t[0], [t[0], 1])),
        "assignment to elements": _assign(lambda t: ([t[0], 3], t)),
        "assignment to unzipped rows and columns": _rows_and_columns,
    }
)


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_indices(name: str, dynamic: bool) -> None:
    model = Function(INDEXED[name]).eval()
    torch.manual_seed(0)
    given = torch.randn(4, 3), torch.tensor([1, 2])
    shapes: Any = {"x": {0: "rows"}, "y": None} if dynamic else None
    program = fxonnx.export(model, given, dynamic_shapes=shapes, strict_shapes=True)
    for rows, numbers in ((4, (1, 2)), (4, (-1, 0)), (4, (2, -3)), *(((7, (0, -2)),) if dynamic else ())):
        x, t = torch.randn(rows, 3), torch.tensor(numbers)
        assert torch.equal(program(x, t)[0], model(x, t))


def _assign_by_bytes(x: Tensor) -> Tensor:
    changed = x.clone()
    changed[:, (x[0] > 0).byte()] += 1
    return changed


BYTES: Mapping[str, Callable[[Tensor], Any]] = MappingProxyType(
    {
        "a mask": lambda x: x[(x > 0).byte()],
        "a mask and a slice": lambda x: x[(x[:, 0] > 0).byte(), :1],
        "a mask without axes": lambda x: x[x.new_tensor(2, dtype=torch.uint8)],
        "assignment": _assign_by_bytes,
        "where": lambda x: torch.where((x > 0).byte(), x, -x),
        "where by name": lambda x: torch.where(condition=(x > 0).byte(), input=x, other=-x),
        "the method where": lambda x: x.where((x > 0).byte(), -x),
        "where with one argument": lambda x: torch.where((x > 0).byte()),
    }
)


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8", "ignore:where received a uint8 condition")
@pytest.mark.parametrize("name", BYTES)
def test_masks_of_bytes(name: str) -> None:
    model = Function(BYTES[name]).eval()
    program = fxonnx.export(model, (torch.randn(4, 3),), dynamic_shapes=({0: "n", 1: "m"},))
    for x in (torch.randn(4, 3), torch.randn(7, 5), -torch.ones(2, 2), torch.ones(1, 3)):
        for ours, theirs in zip(program(x), torch.utils._pytree.tree_leaves(model(x)), strict=True):
            assert torch.equal(ours, theirs)


def _read_by_truths(x: Tensor) -> Any:
    is_positive, total = x.sum() > 0, x.sum()
    parts = (
        x[is_positive],
        x[..., is_positive, :2],
        x[None, is_positive, None, 0],
        x[:, is_positive],
        x[0, ~is_positive],
    )
    return parts, total[is_positive] / x.max()[is_positive]


def _write_by_truths(x: Tensor) -> Any:
    is_positive, changed, total = x.sum() > 0, x.clone(), x.sum()
    changed[is_positive] = x[is_positive] * 2
    changed[:, ~is_positive] = 1.0
    changed[..., is_positive, 0] += 3
    changed[0][x.max() > 1] = x[0]
    total[total > 1] = 1 / total[total > 1]
    return changed, total


def _write_by_truths_in_branches(x: Tensor) -> Any:
    changed = x.clone()
    if x.max() > 1:
        changed[x.sum() > 0] = x + 5
    for row in x:
        changed[row.sum() > 0, 0] = row[0]
    return changed


OF_DATA: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "logsumexp": lambda x: torch.logsumexp(x[x > 0], 0),
        "logsumexp of integers": lambda x: torch.logsumexp(x.long()[x > 0].view(-1, 1), (0, 1), keepdim=True),
        "roll": lambda x: x[x > 0].roll(2, 0),
    }
)


@pytest.mark.parametrize("name", OF_DATA)
def test_a_number_of_elements_that_depends_on_data(name: str) -> None:
    model = Function(OF_DATA[name]).eval()
    program = fxonnx.export(model, (torch.randn(4, 3) * 3,), dynamic_shapes=({0: "n", 1: "m"},))
    for x in (torch.randn(7, 5) * 3, torch.ones(1, 1), -torch.ones(2, 2)):
        torch.testing.assert_close(program(x)[0], model(x))


@pytest.mark.parametrize("function", [_read_by_truths, _write_by_truths, _write_by_truths_in_branches])
def test_masks_without_axes(function: Callable[[Tensor], Any]) -> None:
    model = Function(function).eval()
    program = fxonnx.export(model, (torch.randn(4, 3),), dynamic_shapes=({0: "n", 1: "m"},))
    for x in (torch.randn(7, 5) + 1, torch.randn(7, 5) - 1, -torch.ones(2, 2), torch.ones(1, 3) / 9):
        for ours, theirs in zip(program(x), torch.utils._pytree.tree_leaves(model(x)), strict=True):
            assert torch.equal(ours, theirs)


# Writes through ``tensor.data`` in forward are captured.


def padded(x: Tensor) -> Tensor:
    joint = x.new_zeros(x.shape[0], 5)
    joint.data[:, 2:].copy_(x)
    return joint + 1


def added(x: Tensor) -> Tensor:
    y = x * 2
    row = y[0]
    y.data.add_(1)
    return y + row


def assigned(x: Tensor) -> Tensor:
    y = x * 2
    y.data = y * 3
    return y + y.data.sum()


@pytest.mark.parametrize("function", [padded, added, assigned])
def test_a_write_through_data(function: Callable[[Tensor], Tensor]) -> None:
    program = fxonnx.export(Function(function).eval(), (torch.rand(2, 3),), dynamic_shapes=({0: "n"},))
    for size in (2, 1, 5):
        x = torch.rand(size, 3)
        torch.testing.assert_close(program(x)[0], function(x))
