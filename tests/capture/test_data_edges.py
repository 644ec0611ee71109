"""Branches for single sizes that depend on data, beside gradients: left out where the model skips nothing, else a limit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fxonnx

from ..saved import run_from_file


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
