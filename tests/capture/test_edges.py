"""Branches for single sizes: left out where the model shows that the other branch computes the same, or else a limit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import fxonnx

from ..functions import Function
from ..saved import run_from_file

SIZES = ((16, 24), (13, 24), (16, 21), (12, 13), (9, 17), (8, 8), (24, 40), (5, 6))


def pads_both(x: torch.Tensor) -> torch.Tensor:
    h, w = x.shape[-2:]
    below, right = (8 - h % 8) % 8, (-w) % 8
    if below > 0 or right > 0:
        x = F.pad(x, (0, right, 0, below), "reflect")
    b, c, rows, columns = x.shape
    means = x.reshape(b, c, rows // 8, 8, columns // 8, 8).mean((3, 5))
    return F.interpolate(means, scale_factor=8)[..., :h, :w]


def pads_if_true(x: torch.Tensor) -> torch.Tensor:
    if rest := -x.shape[-2] % 8:
        x = F.pad(x, (0, 0, 0, rest))
    return x.unflatten(2, (-1, 8)).sum(3)


def returns_early(x: torch.Tensor) -> torch.Tensor:
    width = x.shape[-1]
    if -width % 4 == 0:
        return x * 2
    return F.pad(x, (0, -width % 4))[..., :width] * 2


def pads_to_least(x: torch.Tensor) -> torch.Tensor:
    missing = max(0, 10 - x.shape[-1])
    if missing > 0:
        x = F.pad(x, (0, missing))
    return x[..., :10]


def resizes(x: torch.Tensor) -> torch.Tensor:
    skip = x
    y = F.max_pool2d(F.pad(x, (0, 1, 0, 1)), 2).repeat_interleave(2, 2).repeat_interleave(2, 3)
    if y.shape != skip.shape:
        y = F.interpolate(y, size=skip.shape[2:])
    return y + skip


def unrelated_edges(x: torch.Tensor) -> torch.Tensor:
    """One branch may be left out, and the other may not."""
    rest = -x.shape[-1] % 4
    if rest > 0:
        x = F.pad(x, (0, rest))
    return x * 3 if x.shape[-2] == 16 else x


def adds_at_the_edge(x: torch.Tensor) -> torch.Tensor:
    rest = -x.shape[-1] % 4
    if rest > 0:
        x = F.pad(x, (0, rest)) + 1
    return x


def pads_a_whole_block(x: torch.Tensor) -> torch.Tensor:
    if x.shape[-2] % 8 != 0:
        x = F.pad(x, (0, 0, 0, 8 - x.shape[-2] % 8))
    return x.unflatten(2, (-1, 8)).sum(3)


def fills_a_whole_block(x: torch.Tensor) -> torch.Tensor:
    rest = x.shape[-2] % 8
    if rest > 0:
        x = torch.cat((torch.full((*x.shape[:2], 8 - rest, x.shape[-1]), 3.0), x), 2)
    return x.unflatten(2, (-1, 8)).sum(3)


def pads_to_the_next_block(x: torch.Tensor) -> torch.Tensor:
    height = x.shape[-2]
    if height % 8:
        blocks = height // 8 + 1
        x = F.pad(x, (0, 0, 0, blocks * 8 - height))
    return x.unflatten(2, (-1, 8)).sum(3)


def pads_more_at_the_edge(x: torch.Tensor) -> torch.Tensor:
    """With a width of 21, a height of 16 becomes one of 24."""
    h, w = x.shape[-2:]
    if h % 8 or w % 4:
        x = F.pad(x, (0, 0, 0, 8 - h % 8))
    return x.unflatten(2, (-1, 8)).sum(3)


def clamps_by_a_filled_tensor(x: torch.Tensor) -> torch.Tensor:
    """Both branches run the same operators on the input, but not with the same constants."""
    limit = torch.full((1,), 50.0 if x.shape[-1] % 4 == 0 else 60.0)
    return torch.minimum(x, limit.expand(3, 1, 1))


def multiplies_the_single_row(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[-2] == 9 else x + 1


def clamps_at_the_edge(x: torch.Tensor) -> torch.Tensor:
    """Both branches agree for most inputs, of the proof as well, but are not the same."""
    return x.clamp(-50, 50) if x.shape[-1] % 4 == 0 else x


def decides_by_values(x: torch.Tensor) -> torch.Tensor:
    """For half of all inputs, the branches agree."""
    count = (x > 0).sum() if x.shape[-1] % 4 == 0 else x.sum().to(torch.int64)
    return torch.where(count % 2 == 0, x, x.relu())


def statuses(function: Callable[..., Any], example: tuple[int, int], path: Path, **options: Any) -> tuple[Any, str]:
    """The program, and for each size a letter: r for right, f for a failure of the file, w for wrong."""
    model = Function(function).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dims = {0: "b", 2: "h", 3: "w"}
        program = fxonnx.export(model, (torch.randn(1, 3, *example),), path, dynamic_shapes=(dims,), **options)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, quiet)
    letters = ""
    for size in SIZES:
        x = torch.randn(2, 3, *size)
        try:
            found = torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
        except Exception:  # noqa: BLE001 - of ONNX Runtime
            letters += "f"
            continue
        try:
            expected = model(x)
        except RuntimeError:
            expected = None
        equal = expected is not None and found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5)
        letters += "r" if equal else "w"
    return program, letters


EXAMPLES = ((16, 24), (13, 21), (16, 21))
RIGHT = (
    *(pads_both, pads_if_true, returns_early, pads_to_least, resizes),
    *(pads_a_whole_block, fills_a_whole_block, pads_to_the_next_block),
)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
@pytest.mark.parametrize("function", RIGHT)
def test_right_at_every_size(function: Callable[..., Any], example: tuple[int, int], tmp_path: Path) -> None:
    program, letters = statuses(function, example, tmp_path / "m.onnx")
    assert letters == "r" * len(SIZES)
    assert any(one.detail == "a branch for single sizes" for one in program.record.proof.departures)


def cuts_a_long_row(x: torch.Tensor) -> torch.Tensor:
    """The results of the branches have other shapes."""
    cut = x[..., :22] if x.shape[-1] > 22 else x + 1
    return cut * 3


def writes_in_both(x: torch.Tensor) -> torch.Tensor:
    """Nested branches that write the same tensor."""
    y = x.clone()
    if x.shape[-1] > 22:
        y.mul_(2)
        if x.shape[-2] % 8 == 0:
            y[:, 0] += 1
    else:
        y.add_(3)
    return y


def is_centered(x: torch.Tensor) -> torch.Tensor:
    """A truth value of a size, and steps that differ."""
    n = x.shape[-1]
    steps = torch.arange(-(n - 1) / 2, n / 2) / (n - 1) if n % 2 else torch.arange(-n / 2, n / 2) / n
    return x * steps


def pads_by_numbers(x: torch.Tensor) -> torch.Tensor:
    """Numbers in a list, in a loop."""
    padding = [0, 0, 0, 0]
    for axis in (1, 2):
        if x.shape[-axis] % 4 == 1:
            padding[2 * axis - 1] = 2
    return F.pad(x, padding, value=1.0) + 1


def chooses_by_two_sizes(x: torch.Tensor) -> torch.Tensor:
    if x.shape[-1] > 20 and x.shape[-2] % 8 == 0:
        return x.cumsum(-1) * 2
    return x.flip(-1)


def flags_a_padding(x: torch.Tensor) -> torch.Tensor:
    """A second branch, on the result of the first one."""
    is_padded, n = False, x.shape[-1]
    if n % 4 == 0:
        x, is_padded = F.pad(x, (0, 1)), True
    return x[..., :-1] * 2 if is_padded else x


def compares_rows_with_columns(x: torch.Tensor) -> torch.Tensor:
    """Sizes that are equal only elsewhere, and values that are equal only there."""
    same = torch.equal(x[0, 0, :, 0] * 0, x[0, 0, 0] * 0)
    return x * 2 if same else x + 1


def asks_more_at_the_edge(x: torch.Tensor) -> torch.Tensor:
    """A condition that only the edge asks, and which most sizes answer alike."""
    if x.shape[-1] % 8 == 0 and x.shape[-2] > 14:
        return x * 2
    return x + 1


def removes_an_axis(x: torch.Tensor) -> torch.Tensor:
    """The results of the branches have other numbers of axes."""
    return x.sum(-1) if x.shape[-1] > 22 else x


LIMITED = {
    pads_more_at_the_edge: {(16, 24): "rffffrrf", (13, 21): "frfrrffr"},
    removes_an_axis: {(16, 24): "rrffffrf"},
}

BOTH = {
    **{
        adds_at_the_edge: EXAMPLES,
        clamps_by_a_filled_tensor: EXAMPLES[:2],
        multiplies_the_single_row: ((16, 24), (9, 21)),
    },
    **{unrelated_edges: EXAMPLES[:2], clamps_at_the_edge: EXAMPLES[1:2], decides_by_values: EXAMPLES[1:2]},
    **{
        cuts_a_long_row: EXAMPLES[:2],
        is_centered: EXAMPLES[:2],
        writes_in_both: EXAMPLES[:2],
        pads_by_numbers: EXAMPLES[:2],
    },
    **{
        asks_more_at_the_edge: EXAMPLES[:2],
        chooses_by_two_sizes: EXAMPLES[:2],
        flags_a_padding: EXAMPLES[:2],
        compares_rows_with_columns: EXAMPLES[:1],
    },
}


@pytest.mark.parametrize(
    ("function", "example"),
    [(function, example) for function, examples in BOTH.items() for example in examples],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_both_branches_where_they_differ(
    function: Callable[..., Any], example: tuple[int, int], tmp_path: Path
) -> None:
    program, letters = statuses(function, example, tmp_path / "m.onnx")
    assert letters == "r" * len(SIZES)
    assert any("branch on sizes" in str(one) for one in program.record.proof.departures)
    assert not program.record.proof.unexercised


@pytest.mark.parametrize(
    ("function", "example", "expected"),
    [(function, example, letters) for function, rows in LIMITED.items() for example, letters in rows.items()],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_limits_where_the_branches_differ(
    function: Callable[..., Any], example: tuple[int, int], expected: str, tmp_path: Path
) -> None:
    assert statuses(function, example, tmp_path / "m.onnx")[1] == expected


def checks(x: torch.Tensor) -> torch.Tensor:
    if x.shape[-1] % 4 != 0:
        raise ValueError("width")
    return x.unflatten(3, (-1, 4)).sum(4)


def test_checks_of_sizes_are_no_branches(tmp_path: Path) -> None:
    program, letters = statuses(checks, (16, 24), tmp_path / "m.onnx")
    assert letters == "rrfffrrf"
    assert [one.change for one in program.record.capture.attempts] == [""]


def test_a_strict_export_of_branches_for_single_sizes(tmp_path: Path) -> None:
    """Branches that are left out do not limit the requested sizes."""
    assert statuses(returns_early, (16, 24), tmp_path / "m.onnx", strict_shapes=True)[1] == "r" * len(SIZES)
    assert statuses(adds_at_the_edge, (16, 24), tmp_path / "m.onnx", strict_shapes=True)[1] == "r" * len(SIZES)
    with pytest.raises(fxonnx.CaptureError, match=r"only for:\n  w >= 23"):
        statuses(removes_an_axis, (16, 24), tmp_path / "m.onnx", strict_shapes=True)


# Branches for single sizes that depend on data, beside gradients: left out where the model skips nothing, else a limit.


class Species(nn.Module):
    """Energies and forces, with a network for each species that there may be; the networks share their activation."""

    def __init__(self, *, is_clamped: bool = False) -> None:
        super().__init__()
        shared = nn.Tanh()
        self.networks = nn.ModuleList(nn.Sequential(nn.Linear(3, 4), shared, nn.Linear(4, 1)) for _ in range(3))
        self.is_clamped = is_clamped

    def energies(self, species: Tensor, x: Tensor) -> Tensor:
        energies = x.new_zeros(species.shape[0])
        for number, network in enumerate(self.networks):
            index = (species == number).nonzero().view(-1)
            if index.shape[0] > 0:
                energies = energies.index_add(0, index, network(x.index_select(0, index)).view(-1))
                if self.is_clamped:
                    energies = energies.clamp(max=1e3)
        return energies

    def forward(self, species: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_(True)
        with torch.enable_grad():
            energies = self.energies(species, x)
            return energies.detach(), torch.autograd.grad(energies.sum(), x)[0]


class WithoutGradients(Species):
    """Branches that become operators, with a module that is shared by two of them."""

    def forward(self, species: Tensor, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.energies(species, x)


class Rows(nn.Module):
    """Gradients of the rows that are selected, if there are any."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, species: Tensor, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        with torch.enable_grad():
            index = (species == 1).nonzero().view(-1)
            if index.shape[0] == 0:
                return torch.zeros(0, 3)
            return torch.autograd.grad(self.linear(x[index]).pow(2).sum(), x)[0][index]


EXAMPLE = (torch.tensor([0, 1, 1, 0, 2]), torch.randn(5, 3))
DIMS = ({0: "n"}, {0: "n"})


def compare(program: fxonnx.ONNXProgram, model: nn.Module, species: Sequence[int]) -> None:
    inputs = (torch.tensor(species), torch.randn(len(species), 3))
    for have, want in zip(program(*inputs), pytree.tree_leaves(model(*inputs)), strict=True):
        torch.testing.assert_close(have, want.detach())


@pytest.mark.parametrize("species", [[0, 1, 1, 0, 2], [0, 1, 1, 0]], ids=["all", "one is absent"])
@pytest.mark.parametrize("kind", [Species, WithoutGradients])
def test_a_branch_that_skips_nothing_is_left_out(kind: type[nn.Module], species: list[int]) -> None:
    model = kind().eval()
    example = (torch.tensor(species), torch.randn(len(species), 3))
    program = fxonnx.export(model, example, dynamic_shapes=DIMS)
    assert kind is WithoutGradients or not program.record.assumptions
    run_from_file(program)
    for other in ([0, 1, 2], [2, 2], [1], [0, 0, 1, 2, 1, 0, 2]):
        compare(program, model, other)


def test_a_branch_that_skips_something_is_a_limit() -> None:
    model = Species(is_clamped=True).eval()
    with pytest.warns(UserWarning, match="branches on sizes that depend on data, and is exported for one side"):
        program = fxonnx.export(model, EXAMPLE, dynamic_shapes=DIMS)
    run_from_file(program)
    compare(program, model, [2, 1, 0])
    with pytest.raises(fxonnx.ExportError, match=r"if index\.shape\[0\] > 0: -> True"):
        program(torch.tensor([2, 2]), torch.randn(2, 3))


def test_an_early_return_is_a_limit() -> None:
    model = Rows().eval()
    with pytest.warns(UserWarning, match="-> False"):
        program = fxonnx.export(model, EXAMPLE, dynamic_shapes=DIMS)
    run_from_file(program)
    compare(program, model, [1, 1])
    with pytest.raises(fxonnx.ExportError, match=r"if index\.shape\[0\] == 0: -> False"):
        program(torch.tensor([2, 2]), torch.randn(2, 3))


def test_an_example_at_the_edge_of_a_branch_that_skips_something_is_refused() -> None:
    example = (torch.tensor([0, 1, 1]), torch.randn(3, 3))
    with pytest.raises(
        fxonnx.CaptureError, match="control flow that depends on data, of tensors that require gradients"
    ):
        fxonnx.export(Species(is_clamped=True).eval(), example, dynamic_shapes=DIMS)


def chooses_in_the_other_branch(x: Tensor, k: Tensor) -> Tensor:
    if k == 2:
        y = x * k
    else:
        y = x if len(x) % 2 else x * 3
        y = y + k
    return y + x


def chooses_in_a_chain(x: Tensor, k: Tensor) -> Tensor:
    if k == 2:
        y = x * k
    elif len(x) % 2 == 1:
        y = x
    else:
        y = x * 3
    return y + x


def chooses_in_the_branch(x: Tensor, k: Tensor) -> Tensor:
    if k == 2:
        x = x + 1 if x.shape[0] == 5 else x.flip(0)
    return x * 2


def chooses_in_a_helper(x: Tensor, k: Tensor) -> Tensor:
    return chooses_in_the_branch(x, k) if k > 1 else chooses_in_a_chain(x, k)


def chooses_in_a_loop(x: Tensor, k: Tensor) -> Tensor:
    for _ in range(int(k)):
        x = x * 0.5 if x.shape[0] % 2 == 0 else x + 1
    return x


def pads_in_the_other_branch(x: Tensor, k: Tensor) -> Tensor:
    if k == 2:
        return x * 2
    if rest := -len(x) % 4:
        x = F.pad(x, (0, 0, 0, rest))
    return x.unflatten(0, (-1, 4)).sum(1).repeat_interleave(4, 0)[: len(x)] * 2


def squeezes_in_a_branch(x: Tensor, k: Tensor) -> Tensor:
    if k == 2:
        y = x.sum(0)
    else:
        y = x.squeeze(0)
        y = y * 2 if y.dim() == 1 else y.sum(0)
    return y + k


def squeezes_in_a_loop(x: Tensor, k: Tensor) -> Tensor:
    y = x.sum(0)
    for _ in range(int(k)):
        row = x.squeeze(0)
        y = y + (row * 2 if row.dim() == 1 else row.sum(0))
    return y


def squeezes_without_effect(x: Tensor, k: Tensor) -> Tensor:
    if k == 2:
        y = x.squeeze(0).sum()
        y = y + k
    else:
        y = x.sum() * k
    return y


def writes_to_a_copy_in_a_branch(x: Tensor, k: Tensor) -> Tensor:
    """A view of x at one row."""
    if k == 2:
        y = x.sum(0)
    else:
        columns = x.t().reshape(-1)
        columns[0] = 5
        y = x.sum(0) + columns.sum()
    return y


def writes_to_a_copy_in_a_loop(x: Tensor, k: Tensor) -> Tensor:
    columns = x.t().contiguous()
    for number in range(int(k)):
        columns[0] = columns[0] + number + 1
    return x.sum(0) + columns.sum()


def writes_to_the_copy_of_a_branch(x: Tensor, k: Tensor) -> Tensor:
    columns = x.t().reshape(-1) if k == 2 else x.t().reshape(-1) * 2
    columns[0] = 9
    return x.sum(0) + columns.sum()


def writes_in_a_branch_to_a_copy(x: Tensor, k: Tensor) -> Tensor:
    columns = x.t().reshape(-1)
    if k == 2:
        columns[0] = 5
    return x.sum(0) + columns.sum()


def reads_a_text_in_a_branch(x: Tensor, k: Tensor) -> Tensor:
    y = x
    if k == 2:
        y = x * 3 if f"{len(x)}" == "4" else x - 1
    return y + k


def reads_a_layout_in_a_loop(x: Tensor, k: Tensor) -> Tensor:
    for _ in range(int(k)):
        x = x * 2 if x.t().is_contiguous() else x + 1
    return x


BRANCHES: dict[Callable[..., Any], set[int]] = {
    chooses_in_the_other_branch: set(),
    chooses_in_a_chain: set(),
    chooses_in_the_branch: set(),
    chooses_in_a_helper: set(),
    chooses_in_a_loop: set(),
    pads_in_the_other_branch: set(),
    squeezes_in_a_branch: {1},
    squeezes_in_a_loop: {1},
    squeezes_without_effect: set(),
    writes_to_a_copy_in_a_branch: {1},
    writes_to_a_copy_in_a_loop: {1},
    writes_to_the_copy_of_a_branch: {1},
    writes_in_a_branch_to_a_copy: {1},
    reads_a_text_in_a_branch: {1, 3, 4},
    reads_a_layout_in_a_loop: {1, 3, 4},
}
"""Functions that a size changes in a branch or a loop, with the numbers of rows of examples that are refused."""


@pytest.mark.parametrize("rows", [3, 4, 1])
@pytest.mark.parametrize("count", [2, 0])
@pytest.mark.parametrize("function", BRANCHES)
def test_a_size_in_a_branch_on_a_value(function: Callable[..., Any], count: int, rows: int, tmp_path: Path) -> None:
    """At the sizes of the example the file is right for all values; at others it is right or fails."""
    model = Function(function).eval()
    example = (torch.randn(rows, 5), torch.tensor(count))
    refused = pytest.raises(fxonnx.CaptureError) if rows in BRANCHES[function] else nullcontext()
    with warnings.catch_warnings(), refused:
        warnings.simplefilter("ignore")
        fxonnx.export(model, example, tmp_path / "m.onnx", dynamic_shapes=({0: "n"}, None))
    if rows in BRANCHES[function]:
        return
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", quiet)
    names = [one.name for one in session.get_inputs()]
    for size in (1, 2, 3, 4, 5, 6, 8):
        for value in (0, 1, 2, 3):
            x, k = torch.randn(size, 5), torch.tensor(value)
            try:
                (found,) = session.run(None, dict(zip(names, (x.numpy(), k.numpy()), strict=True)))
            except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
                assert size != rows
                continue
            torch.testing.assert_close(torch.from_numpy(found), model(x.clone(), k))
