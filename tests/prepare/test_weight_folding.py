"""Weight folding: batch norms folded into the preceding layer, and derived weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import fxonnx
from fxonnx._prepare import weight_folding
from fxonnx._prepare.weight_folding import find_derived_weights, fold_batch_norm
from tests.functions import Function
from tests.saved import run_from_file

from .helpers import capture, own_copy, run, targets, tensors

aten = torch.ops.aten


def _trained(model: nn.Module) -> nn.Module:
    """Randomize the neutral initial parameters and statistics of a model."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            values = torch.rand(tensor.shape, generator=generator) + (0.5 if "var" in name else -0.5)
            tensor.copy_(values)
    return model


def _weights(gm: torch.fx.GraphModule, program: torch.export.ExportedProgram) -> set[torch.fx.Node]:
    signature = program.graph_signature
    names = {*signature.inputs_to_parameters, *signature.inputs_to_buffers}
    return {node for node in gm.graph.nodes if node.op == "placeholder" and node.name in names}


def _folded(model: nn.Module, *args: torch.Tensor) -> tuple[torch.fx.GraphModule, torch.export.ExportedProgram]:
    program = capture(model, args)
    gm = own_copy(program)
    fold_batch_norm(gm.graph, _weights(gm, program))
    return gm, program


def _layers(layer: nn.Module, norm: nn.Module) -> nn.Module:
    return _trained(nn.Sequential(layer, norm))


FOLDED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: _layers(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6)), (2, 4, 8)),
    "conv2d": (lambda: _layers(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, eps=0.1)), (2, 4, 8, 8)),
    "conv2d without bias": (lambda: _layers(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6)), (2, 4, 8, 8)),
    "conv2d with groups": (lambda: _layers(nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)), (2, 4, 8, 8)),
    "conv2d padded to the same size": (
        lambda: _layers(nn.Conv2d(4, 6, 3, padding="same"), nn.BatchNorm2d(6)),
        (2, 4, 8, 8),
    ),
    "conv3d": (lambda: _layers(nn.Conv3d(4, 6, 2), nn.BatchNorm3d(6)), (2, 4, 3, 4, 5)),
    "no affine parameters": (lambda: _layers(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, affine=False)), (2, 4, 8, 8)),
    "transposed": (lambda: _layers(nn.ConvTranspose2d(4, 6, 3, 2), nn.BatchNorm2d(6)), (2, 4, 5, 5)),
    "transposed with groups": (
        lambda: _layers(nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2, False), nn.BatchNorm2d(6)),
        (2, 4, 5, 5),
    ),
    "transposed 1d": (lambda: _layers(nn.ConvTranspose1d(4, 6, 3, groups=2), nn.BatchNorm1d(6)), (2, 4, 5)),
    "transposed 3d": (lambda: _layers(nn.ConvTranspose3d(4, 6, 2), nn.BatchNorm3d(6)), (2, 4, 3, 3, 3)),
    "linear": (lambda: _layers(nn.Linear(4, 6), nn.BatchNorm1d(6)), (5, 4)),
    "linear without bias": (lambda: _layers(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6)), (5, 4)),
    "float64": (lambda: _layers(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)).double(), (2, 4, 8, 8)),
}


@pytest.mark.parametrize("name", FOLDED)
def test_batch_norm_is_folded_and_values_are_kept(name: str) -> None:
    make, shape = FOLDED[name]
    model = make()
    x = torch.randn(shape, dtype=next(model.parameters()).dtype)
    gm, program = _folded(model, x)
    assert aten.batch_norm.default not in targets(gm)
    assert_close(run(gm, program, x), model(x))


class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.norm(self.conv(x)))


class _ReadTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return y + self.norm(y)


class _WeightAtRunTime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(F.conv2d(x, x[:, :, :3, :3]))


class _Unbatched(nn.Module):
    """An unbatched convolution, whose channels are the batch norm's batch and whose positions are its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x))


class _SeveralRows(nn.Module):
    """The batch norm's channels are the rows, not the features."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 5), nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


class _BatchStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x))


KEPT: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "the convolution is used twice": (_Shared, (4, 4, 8, 8)),
    "the convolution's result is read twice": (_ReadTwice, (4, 4, 8, 8)),
    "the weight is computed": (_WeightAtRunTime, (4, 4, 8, 8)),
    "one sample without a batch axis": (_Unbatched, (4, 8)),
    "linear layer of three axes": (_SeveralRows, (3, 5, 4)),
    "statistics of the batch": (_BatchStatistics, (4, 4, 8, 8)),
}


@pytest.mark.parametrize("name", KEPT)
def test_batch_norm_that_cannot_be_folded(name: str) -> None:
    make, shape = KEPT[name]
    model, x = _trained(make()), torch.randn(shape)
    gm, program = _folded(model, x)
    assert aten.batch_norm.default in targets(gm)
    assert_close(run(gm, program, x), model.eval()(x))


def test_a_batch_norm_of_another_dtype_is_not_folded() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3).bfloat16(), nn.BatchNorm2d(4))
    x = torch.randn(2, 4, 5, 5, dtype=torch.bfloat16)
    gm, program = _folded(model, x)
    assert_close(run(gm, program, x), model(x))
    assert aten.batch_norm.default in targets(gm)


def test_batch_norm_without_a_preceding_layer_is_not_folded() -> None:
    gm, _ = _folded(_trained(nn.BatchNorm2d(4)), torch.randn(2, 4, 3, 3))
    assert targets(gm) == [aten.batch_norm.default]


def test_norm_shared_by_two_layers_is_folded_into_each() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.norm = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.second(self.norm(self.first(x))))

    model, x = _trained(Model()), torch.randn(2, 4, 3, 3)
    gm, program = _folded(model, x)
    assert targets(gm).count(aten.conv2d.default) == 2
    assert aten.batch_norm.default not in targets(gm)
    assert_close(run(gm, program, x), model(x))


# ---- derived weights


class _Weighted(nn.Module):
    """A module that applies a function to its input and a weight of shape (3, 4)."""

    def __init__(
        self, function: Callable[[torch.Tensor, torch.Tensor], Any], dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(12.0).reshape(3, 4).to(dtype), requires_grad=False)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, self.weight)


def _derived(model: nn.Module, x: torch.Tensor) -> list[tuple[Any, tuple[int, ...], torch.Tensor, str]]:
    program = capture(model, (x,))
    gm = own_copy(program)
    weights = _weights(gm, program)
    fold_batch_norm(gm.graph, weights)
    constants = {str(node.target): getattr(gm, str(node.target)) for node in gm.graph.nodes if node.op == "get_attr"}
    values = tensors(program)
    return [
        (node.target, record.shape, record.recipe(*(values[source.name] for source in record.sources)), record.suffix)
        for node, record in find_derived_weights(gm.graph, weights, constants).items()
    ]


def test_only_the_last_of_a_chain_is_recorded_and_its_recipe_computes_the_whole_chain() -> None:
    ((target, shape, value, suffix),) = _derived(_Weighted(lambda x, w: x @ (w * 2).t()), torch.ones(2, 4))
    assert (target, shape, suffix) == (aten.t.default, (4, 3), "t")
    assert torch.equal(value, torch.arange(12.0).reshape(3, 4).t() * 2)


def test_intermediate_value_with_other_uses_is_recorded() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        doubled = w * 2
        return x + doubled, x.t() @ doubled.t()[:3, :3]

    assert len(_derived(_Weighted(function), torch.ones(3, 4))) == 2


def test_one_of_several_outputs() -> None:
    rows = _derived(_Weighted(lambda x, w: x + w.chunk(2, 1)[1]), torch.ones(3, 2))
    ((_, shape, value, _),) = rows
    assert shape == (3, 2)
    assert torch.equal(value, torch.arange(12.0).reshape(3, 4)[:, 2:])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x + w.repeat(2, 1),
        lambda x, w: x + w.unsqueeze(0).expand(2, 3, 4).reshape(6, 4),
        lambda x, w: x + torch.cat([w, w]),
    ],
    ids=["repeat", "expand", "cat"],
)
def test_only_small_weights_are_made_larger(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert [value.numel() for _, _, value, _ in _derived(_Weighted(function), torch.ones(6, 4))] == [24]
    monkeypatch.setattr(weight_folding, "MAX_GROWN_ELEMENTS", 23)
    assert all(value.numel() <= 12 for _, _, value, _ in _derived(_Weighted(function), torch.ones(6, 4)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_a_storage_dtype_is_not_widened(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _Weighted(lambda x, w: x @ w.to(torch.float32).t(), dtype)
    if dtype.itemsize == 2:
        # Small weights, such as rotary frequencies, are widened.
        ((_, _, value, _),) = _derived(model, torch.ones(2, 4))
        assert value.dtype == torch.float32
        monkeypatch.setattr(weight_folding, "MAX_WIDENED_ELEMENTS", 11)
    assert all(value.dtype == dtype for _, _, value, _ in _derived(model, torch.ones(2, 4)))


def test_narrowing_of_a_weight_is_derived() -> None:
    ((target, _, value, _),) = _derived(_Weighted(lambda x, w: x @ w.half().t()), torch.ones(2, 4, dtype=torch.float16))
    assert (target, value.dtype) == (aten.t.default, torch.float16)


def test_random_numbers_are_not_derived() -> None:
    assert _derived(_Weighted(lambda x, w: x + torch.bernoulli(w / 12)), torch.ones(3, 4))[0][0] is aten.div.Tensor


def test_values_that_depend_on_an_input_are_not_derived() -> None:
    assert _derived(_Weighted(lambda x, w: (x + w).t()), torch.ones(3, 4)) == []


def test_the_folded_parameters_are_derived_by_name_and_shape() -> None:
    model = _layers(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6))
    rows = _derived(model, torch.ones(2, 4, 5, 5))
    assert [(shape, suffix) for _, shape, _, suffix in rows] == [((6, 4, 3, 3), "folded"), ((6,), "folded")]
    scale = model[1].weight / torch.sqrt(model[1].running_var + model[1].eps)
    assert_close(rows[0][2], model[0].weight * scale.reshape(-1, 1, 1, 1))
    assert_close(rows[1][2], (model[0].bias - model[1].running_mean) * scale + model[1].bias)


def test_the_exported_model_has_the_convolution_only() -> None:
    model, x = _layers(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6)), torch.randn(2, 4, 5, 5)
    program = fxonnx.export(model.eval(), (x,))
    assert [node.op_type for node in program.model.graph] == ["Conv"]
    assert_close(program(x)[0], model(x), rtol=1e-5, atol=1e-5)


def test_products_with_sizes_beside_a_product_of_weights() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.round() * x.shape[0], x @ (self.weight * 2)

    model, x = Model().eval(), torch.rand(3, 4)
    fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},)).verify(sizes=[{"n": 3}, {"n": 5}])


class _WeightViews(nn.Module):
    """Views of a weight's transpose, each of which torch refuses or computes differently without the copy before it."""

    def __init__(self, view: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.view = view
        self.weight = nn.Parameter(torch.randn(2, 6, 4, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.unsqueeze(-1) * self.view(self.weight.transpose(0, 2)).flatten().to(torch.float32)


VIEWS_OF_COPIES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype]] = {
    "view": (lambda w: w.contiguous().view(6, 8), torch.float32),
    "unsafe view": (
        lambda w: torch.ops.aten._unsafe_view(w.clone(memory_format=torch.contiguous_format), [48]),
        torch.float32,
    ),
    "copy in another layout": (lambda w: w.contiguous().clone().reshape(3, 16), torch.float32),
    "complex": (lambda w: torch.view_as_real(torch.view_as_complex(w.contiguous()).exp()), torch.float32),
    "other element size": (lambda w: w.contiguous().view(torch.int32) >> 20, torch.float16),
    "strided": (lambda w: w.contiguous().as_strided((3, 5), (2, 7), 1), torch.float32),
}


@pytest.mark.parametrize("name", VIEWS_OF_COPIES)
def test_views_of_a_copied_weight_match_eager_torch(name: str) -> None:
    view, dtype = VIEWS_OF_COPIES[name]
    model = _WeightViews(view, dtype).eval()
    program = fxonnx.export(model, (torch.randn(3),), dynamic_shapes=({0: "n"},))
    run_from_file(program)
    x = torch.randn(5)
    assert_close(program(x)[0], model(x))


def test_a_strided_view_of_a_copy_reads_the_copy() -> None:
    model = Function(lambda x: x.t().contiguous().as_strided((2, 2), (1, 3))).eval()
    program = fxonnx.export(model, (torch.randn(3, 3),))
    run_from_file(program)
    x = torch.randn(3, 3)
    assert_close(program(x)[0], model(x))


def test_a_gradient_of_tensordot_is_written() -> None:
    model = _GradientOfTensordot().eval()
    program = fxonnx.export(model, (torch.randn(5, 2, 4),), dynamic_shapes=({0: "n"},))
    run_from_file(program)
    x = torch.randn(3, 2, 4)
    assert_close(program(x)[0], model(x))


class _GradientOfTensordot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 2, 3))

    def forward(self, x: torch.Tensor) -> Any:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            y = torch.tensordot(x, self.weight, dims=((1, 2), (1, 0)))
            return torch.autograd.grad(y.square().sum(), x)[0]


def test_a_weight_whose_recipe_fails_is_computed_by_the_graph() -> None:
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y.t().exp().sum(0)

    model = Function(forward)
    gm = own_copy(capture(model, (torch.randn(3), torch.randn(3, 2))))
    _, weight = gm.graph.find_nodes(op="placeholder")
    (exp,) = gm.graph.find_nodes(op="call_function", target=aten.exp.default)
    found = find_derived_weights(gm.graph, {weight}, {})
    assert [record.suffix for record in found.values()] == ["sum"]
    # A step that torch refuses, as no operator of a captured program is.
    exp.target, exp.args = aten.permute.default, (exp.args[0], [0, 0])
    found = find_derived_weights(gm.graph, {weight}, {})
    assert [record.suffix for record in found.values()] == ["t"]
