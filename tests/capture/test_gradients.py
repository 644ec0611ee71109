"""Derivatives in forward: ``torch.autograd`` in force fields, equations and explanations, and the transforms of ``torch.func``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils._pytree import tree_leaves

import fxonnx
from fxonnx.errors import CaptureError
from tests.functions import Function
from tests.saved import run_from_file


class ForceField(nn.Module):
    """Energy and forces of atoms, from messages along edges."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.filter = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 8))
        self.output = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 1))
        self.register_buffer("centers", torch.linspace(0, 3, 4))

    def forward(self, numbers: Tensor, positions: Tensor, edges: Tensor) -> dict[str, Tensor]:
        positions = positions.detach().requires_grad_(True)
        with torch.enable_grad():
            here, there = edges
            distances = (positions[here] - positions[there]).pow(2).sum(-1).add(1e-6).sqrt()
            filters = self.filter(torch.exp(-((distances[:, None] - self.centers) ** 2)))
            atoms = self.embedding(numbers)
            energy = self.output(atoms.index_add(0, here, atoms[there] * filters)).sum()
            (gradient,) = torch.autograd.grad(energy, positions)
        return {"energy": energy.detach(), "forces": -gradient}


class Residual(nn.Module):
    """The residual of a differential equation: second derivatives, of a graph that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, points: Tensor) -> Tensor:
        with torch.enable_grad():
            points = points.requires_grad_(True)
            value = self.network(points)
            (first,) = torch.autograd.grad(value.sum(), points, create_graph=True)
            (second,) = torch.autograd.grad(first[:, 0].sum(), points, create_graph=True)
            residual: Tensor = first[:, 1] - 0.1 * second[:, 0] + value[:, 0] ** 2
            return residual


class Saliency(nn.Module):
    """The gradient of the best class by the image."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            *(
                nn.Conv2d(3, 4, 3, stride=2),
                nn.BatchNorm2d(4),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(16, 5),
            )
        )

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            image = image.detach().requires_grad_(True)
            scores = self.network(image)
            best = scores.argmax(1)
            scores.gather(1, best[:, None]).sum().backward()
        gradient = image.grad
        return (scores if gradient is None else gradient.abs().amax(1)), best


class Descent(nn.Module):
    """Steps along the gradient of an energy, and a branch on the result."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            with torch.enable_grad():
                x = x.detach().requires_grad_(True)
                (gradient,) = torch.autograd.grad(self.energy(x).sum(), x)
            x = x.detach() - 0.1 * gradient
        if x.sum() > 0:
            return x * 2
        return x


class Recurrent(nn.Module):
    """Layers whose kernels in a capture compute shapes only, beside a path without them."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            y, _ = self.gru(x)
            attended = F.scaled_dot_product_attention(y, y, x)
            return torch.autograd.grad((attended**2).sum(), x)[0]


def atoms(count: int) -> tuple[Tensor, ...]:
    return torch.randint(0, 10, (count,)), torch.randn(count, 3), torch.randint(0, count, (2, 3 * count))


MODELS: dict[str, tuple[nn.Module, Callable[[int], tuple[Tensor, ...]], Any]] = {
    "forces": (ForceField(), atoms, ({0: "n"}, {0: "n"}, {1: "edges"})),
    "second derivatives": (Residual(), lambda n: (torch.randn(n, 2),), ({0: "n"},)),
    "convolutions": (Saliency(), lambda n: (torch.randn(n, 3, 11, 11),), ({0: "n"},)),
    "steps": (Descent(), lambda n: (torch.randn(n, 3),), ({0: "n"},)),
    "recurrent": (Recurrent(), lambda n: (torch.randn(n, 5, 4),), ({0: "n"},)),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_match_eager_torch(name: str) -> None:
    model, inputs, shapes = MODELS[name]
    model.eval()
    program = fxonnx.export(model, inputs(4), dynamic_shapes=shapes)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert any(model_name in program.model.graph.initializers for model_name in model.state_dict())
    for size in (2, 5, 9):
        given = inputs(size)
        found = tree_leaves(program(*given))
        expected = tree_leaves(model(*(value.clone() for value in given)))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=1e-5)
        model.zero_grad()


def test_nodes_have_the_lines_of_forward() -> None:
    program = fxonnx.export(MODELS["second derivatives"][0].eval(), (torch.randn(4, 2),))
    (tanh,) = (node for node in program.model.graph if node.op_type == "Tanh")
    assert "test_gradients.py" in tanh.metadata_props["pkg.torch.onnx.stack_trace"]


class Branched(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            y = x * 3 if x.sum() > 0 else x.exp()
            return torch.autograd.grad(y.sum(), x)[0]


class Looped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            y = x
            while y.sum() < 10:
                y = y * 2
            return torch.autograd.grad(y.sum(), x)[0]


@pytest.mark.parametrize("model", [Branched(), Looped()], ids=lambda model: type(model).__name__)
def test_control_flow_that_needs_gradients_is_refused(model: nn.Module) -> None:
    with pytest.raises(CaptureError, match=r"control flow that depends on data(?s:.*)hint: use tensor operators"):
        fxonnx.export(model, (torch.rand(3, 2),))


class Accumulated(nn.Module):
    """``backward`` adds to the gradients of the calls before."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Any:
        with torch.enable_grad():
            (self.layer(x) ** 2).sum().backward()
        return self.layer.weight.grad


def test_gradients_that_depend_on_the_calls_before_are_refused() -> None:
    model = Accumulated().eval()
    with pytest.raises(
        CaptureError, match=r"does not compute what the model computes(?s:.*)gradients of torch.autograd"
    ):
        fxonnx.export(model, (torch.rand(2, 3),))
    assert model.layer.weight.grad is None


CONVOLUTIONS = (
    F.conv1d,
    F.conv2d,
    F.conv_transpose1d,
    F.conv_transpose2d,
)


@pytest.mark.parametrize("by_weight", [False, True], ids=["input", "weight"])
@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "groups": 2}, {"stride": 3}], ids=str
)
@pytest.mark.parametrize("convolution", CONVOLUTIONS, ids=lambda function: function.__name__)
def test_gradients_of_convolutions(
    convolution: Callable[..., Tensor], options: dict[str, Any], by_weight: bool
) -> None:
    count = int(convolution.__name__[-2])
    is_transposed = "transpose" in convolution.__name__
    groups = options.get("groups", 1)
    weight = torch.randn(4, 4 // groups, *([3] * count))

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x, factors = x.detach().requires_grad_(True), weight.clone().requires_grad_(True)
                result = convolution(x, factors, torch.ones(4), **options)
                return torch.autograd.grad((result**3).sum(), factors if by_weight else x)[0]

    def inputs(samples: int, size: int) -> Tensor:
        return torch.randn(samples, 4, size, *([8] * (count - 1)))

    model = Model().eval()
    if by_weight and is_transposed:
        with pytest.raises(
            fxonnx.UnsupportedOperatorError, match="gradients of the weights of a transposed convolution"
        ):
            fxonnx.export(model, (inputs(2, 7),))
        return
    program = fxonnx.export(model, (inputs(2, 7),), dynamic_shapes=({0: "n", 2: "size"},))
    for samples, size in ((2, 7), (3, 8), (1, 12)):
        x = inputs(samples, size)
        torch.testing.assert_close(program(x)[0], model(x), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("function", [torch.linalg.det, torch.logdet, lambda x: torch.linalg.slogdet(x)[1]])
def test_gradients_of_determinants(function: Callable[[Tensor], Tensor], transposed: bool) -> None:
    """torch factorizes the transpose of a matrix that is in row-major order, and its gradient expects it."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_(True)
                matrix = x.mT if transposed else x
                return torch.autograd.grad(function(matrix).sum(), x)[0]

    def matrices(count: int) -> Tensor:
        return torch.rand(count, 3, 3) + 3 * torch.eye(3)

    program = fxonnx.export(Model().eval(), (matrices(2),), dynamic_shapes=({0: "n"},))
    x = matrices(4)
    torch.testing.assert_close(program(x)[0], Model()(x), rtol=1e-4, atol=1e-5)


class _Saliency(nn.Module):
    """The gradients of the outputs of a batch, as captum computes them."""

    def __init__(self, score: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.score = score

    def forward(self, x: torch.Tensor) -> Any:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            out = self.score(self.conv(x).relu().mean((2, 3)))
            return torch.autograd.grad(torch.unbind(out), x)[0].abs()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "score",
    [
        lambda out: out[:, 1],
        lambda out: out[torch.arange(out.shape[0]), out.argmax(1)],
        lambda out: out.softmax(1).square().sum(1),
    ],
)
def test_gradients_of_the_parts_of_a_batch(score: Callable[[torch.Tensor], torch.Tensor], batch: int) -> None:
    model = _Saliency(score).eval()
    dims = {0: "b", 2: "h", 3: "w"}
    program = fxonnx.export(model, (torch.rand(batch, 3, 8, 8),), dynamic_shapes=(dims,))
    run_from_file(program)
    for shape in ((1, 3, 8, 8), (4, 3, 8, 8), (2, 3, 9, 12)):
        x = torch.rand(shape)
        torch.testing.assert_close(program(x)[0], model(x))


class _Layer(_Saliency):
    """The gradients of a layer, with further options of ``torch.autograd.grad``."""

    def __init__(self, options: Any, weight: float | None = None) -> None:
        super().__init__(lambda out: out[:, 1])
        self.options, self.weight = options, weight

    def forward(self, x: torch.Tensor) -> Any:
        with torch.enable_grad():
            y = self.conv(x)
            out = self.score(y.relu().mean((2, 3)))
            options = self.options if self.weight is None else {"grad_outputs": [torch.tensor(self.weight)] * len(out)}
            found = torch.autograd.grad(
                outputs=torch.unbind(out),
                inputs=y,
                **options or {},
            )
            return found[0].mean((2, 3))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("options", [None, {"retain_graph": True}, {"grad_outputs": None}], ids=str)
def test_gradients_of_the_parts_with_options(options: Any, batch: int) -> None:
    model = _Layer(options).eval()
    program = fxonnx.export(model, (torch.rand(batch, 3, 8, 8),), dynamic_shapes=({0: "b"},))
    run_from_file(program)
    assert not any(one.narrows for one in program.record.constraints)
    for size in (1, 4):
        x = torch.rand(size, 3, 8, 8)
        torch.testing.assert_close(program(x)[0], model(x))


def test_weights_of_the_parts_are_one_for_each() -> None:
    """Their number limits the batch."""
    model = _Layer(None, 2.0).eval()
    x = torch.rand(3, 3, 8, 8)
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "b", 2: "h"},))
    assert [one.text for one in program.record.constraints if "b" in one.dims] == ["b == 3"]
    torch.testing.assert_close(program(x)[0], model(x))


# Derivatives in forward: ``torch.func`` transforms and ``torch.autograd``, recorded as plain operators.


class Surface(nn.Module):
    """A signed distance with its normals: the gradient of a network with respect to its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Softplus(10), nn.Linear(8, 8), nn.GELU())
        self.head = nn.Linear(8, 1)

    def forward(self, points: Tensor) -> Any:
        normals = grad(lambda given: self.head(self.net(given)).sum())(points)
        return self.head(self.net(points)), normals / normals.norm(dim=-1, keepdim=True)


class Adapted(nn.Module):
    """One step of gradient descent on the weights inside of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Any:
        weights = dict(self.layer.named_parameters())
        slopes, loss = grad_and_value(lambda given: functional_call(self.layer, given, (x,)).pow(2).mean())(weights)
        changed = {name: weight - 0.1 * slopes[name] for name, weight in weights.items()}
        return functional_call(self.layer, changed, (x,)), loss


def sizes_from_outside(x: Tensor) -> Tensor:
    half = x.shape[0] // 2
    return grad(lambda given: (given[:half] * x.shape[0]).pow(3).sum() / half)(x)


def several(x: Tensor) -> Any:
    return grad(lambda one, other: ((one * other).sum(), one.exp()), argnums=(0, 1), has_aux=True)(x, x.cos())


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "grad": lambda x: grad(lambda given: given.sin().pow(2).sum())(x),
    "grad of grad": lambda x: grad(lambda one: grad(lambda other: other.sin().pow(3).sum())(one).sum())(x),
    "several arguments": several,
    "sizes from outside": sizes_from_outside,
    "jacrev": lambda x: jacrev(lambda given: given.sin() * given.sum())(x[:, 0]),
    "jacfwd": lambda x: jacfwd(lambda given: given.sin() * given.sum())(x.sum(1)),
    "hessian": lambda x: hessian(lambda given: (given.sin() * given.sum()).sum())(x[0]),
    "jvp": lambda x: jvp(lambda given: given.softmax(-1), (x,), (x.cos(),)),
    "vjp": lambda x: vjp(lambda given: given.softmax(-1), x)[1](x.cos())[0],
    "vmap of grad": lambda x: vmap(grad(lambda row: row.sin().pow(2).sum()))(x),
    "vmap of jacrev": lambda x: vmap(jacrev(lambda row: row.sin() * row.sum()))(x),
    "vmap of jacfwd": lambda x: vmap(jacfwd(lambda row: row.sin() * row.sum()))(x),
    "vmap of hessian": lambda x: vmap(hessian(lambda row: (row.sin() * row.sum()).sum()))(x),
    "vmap of hessian, with empty zeros": lambda x: vmap(hessian(lambda row: row.pow(3).sum()))(x),
    "hessian of a dynamic size": lambda x: hessian(lambda given: (given.sin() * given.sum()).sum())(x.sum(1)),
    "forward over forward": lambda x: vmap(jacfwd(jacfwd(lambda row: (row.sin() * row.sum()).sum())))(x),
    "nested vmap": lambda x: vmap(vmap(torch.dot, in_dims=(0, None)), in_dims=(None, 1), out_dims=1)(x, x.t() @ x),
    "nested vmap of grad": lambda x: vmap(vmap(grad(lambda one: one.sin() * one)), in_dims=1)(x),
    "vmap alone": lambda x: vmap(lambda row: row.sin() * row.sum())(x),
    "autograd.functional": lambda x: torch.autograd.functional.jacobian(lambda given: given.sin(), x[0]),
}

TRANSFORMED: dict[str, nn.Module] = {"surface": Surface(), "adapted": Adapted()} | {
    name: Function(function) for name, function in FUNCTIONS.items()
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_derivatives_match_eager_torch(name: str) -> None:
    model = TRANSFORMED[name].eval()
    program = fxonnx.export(model, (torch.randn(4, 3),), dynamic_shapes=({0: "n"},))
    for size in (4, 2, 5):
        x = torch.randn(size, 3)
        expected = torch.utils._pytree.tree_leaves(model(x))
        found = program(x)
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=1e-5)


def test_a_failure_is_one_error_and_unwinds_functorch() -> None:
    def on_content(x: Tensor) -> Tensor:
        return vmap(grad(lambda row: (row if row.sum() > 0 else -row).sum()))(x)

    with pytest.raises(fxonnx.CaptureError, match=r"at: .*test_gradients.py"):
        fxonnx.export(Function(on_content), (torch.randn(4, 3),))
    assert torch._C._functorch.get_interpreter_stack() is None
    assert torch.autograd.forward_ad._current_level == -1
    torch.testing.assert_close(grad(lambda x: F.relu(x).sum())(torch.ones(2)), torch.ones(2))


def test_vmap_over_a_dynamic_batch_with_a_shared_weight() -> None:
    model = Function(lambda x, y: vmap(lambda row, weight: row @ weight, in_dims=(0, None), out_dims=1)(x, y)).eval()
    shapes = ({0: "n"}, None)
    fxonnx.export(model, (torch.randn(3, 4), torch.randn(4, 3)), dynamic_shapes=shapes, verify="auto")


def test_constants_of_a_vmapped_function() -> None:
    model = Function(lambda x: vmap(lambda row: row * torch.tensor([1.5, -1.0]) + torch.tensor(-1.5))(x)).eval()
    program = fxonnx.export(model, (torch.randn(3, 2),), dynamic_shapes=({0: "n"},))
    for x in (torch.randn(3, 2), torch.randn(5, 2)):
        torch.testing.assert_close(program(x)[0], model(x))


def test_slices_of_a_dynamic_batch() -> None:
    def forward(x: Tensor) -> Tensor:
        weight, bias = x[:, :6].view(-1, 2, 3), x[:, 6:8]
        return vmap(lambda w, b, row: F.linear(row, w, b))(weight, bias, x[:, :3])

    program = fxonnx.export(Function(forward).eval(), (torch.randn(3, 8),), dynamic_shapes=({0: "n"},))
    for x in (torch.randn(3, 8), torch.randn(1, 8), torch.randn(5, 8)):
        torch.testing.assert_close(program(x)[0], forward(x))


class Selected(nn.Module):
    """vmap beside a rewritten loop, which records the memory of its tensors."""

    def forward(self, x: Tensor) -> Tensor:
        mixed = vmap(lambda row: row * 2 + row.flip(0))(x)
        out = torch.zeros_like(x)
        for i in x.sum(1).gt(0).nonzero()[:, 0]:
            out[i] = mixed[i]
        return out


def test_vmap_beside_a_rewritten_loop() -> None:
    model = Selected().eval()
    program = fxonnx.export(model, (torch.randn(4, 3),), dynamic_shapes=({0: "n"},))
    for x in (torch.randn(6, 3), -torch.ones(2, 3)):
        torch.testing.assert_close(program(x)[0], model(x))
