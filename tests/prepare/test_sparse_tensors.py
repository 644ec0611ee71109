"""Sparse weights and constants, which become dense ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxonnx
from fxonnx import PrepareError
from tests.functions import Function, VariadicFunction
from tests.saved import run_from_file

pytestmark = pytest.mark.filterwarnings("ignore:Sparse .* tensor support", "ignore:Sparse invariant checks")

INDICES, VALUES = [[0, 1, 1], [2, 0, 0]], [1.0, 2.0, 3.0]


def _coo() -> Tensor:
    return torch.sparse_coo_tensor(INDICES, VALUES, (3, 3))


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "coo": _coo,
    "coalesced": lambda: _coo().coalesce(),
    "csr": lambda: _coo().to_sparse_csr(),
    "csc": lambda: _coo().to_sparse_csc(),
    "bsr": lambda: torch.eye(3).to_sparse_bsr((1, 1)),
}

PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "to_dense": lambda s, x: s.to_dense() @ x,
    "@": lambda s, x: s @ x,
    "mm": torch.mm,
    "sparse.mm": torch.sparse.mm,
    "addmm": lambda s, x: torch.sparse.addmm(x, s, x, beta=0.5, alpha=2.0),
    "scaled": lambda s, x: torch.sparse.mm(s * 2, x),
    "mv": lambda s, x: torch.mv(s, x[:, 0]) @ x,
    "@ vector": lambda s, x: (s @ x[:, -1]) @ x,
    "linear": lambda s, x: torch.nn.functional.linear(x.t(), s),
}

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mv": lambda s, x: torch.mv(s, x[:, 0]),
    "mul": lambda s, x: (s * x[:, :3]).to_dense(),
    "sum": lambda s, x: torch.sparse.sum(s, 1).to_dense()[:, None] + x,
    "transposed": lambda s, x: s.t() @ x,
    "on the right": lambda s, x: x.t() @ s,
    "parts": lambda s, x: s.coalesce().indices()[0].sum() + s.coalesce().values().sum() + x,
    "softmax": lambda s, x: torch.sparse.softmax(s, 1) @ x,
    "made in forward": lambda s, x: torch.sparse_coo_tensor(INDICES, VALUES, (3, 3)) @ x,
    "in no_grad": lambda s, x: _in_no_grad(s, x),
}


def _in_no_grad(sparse: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = sparse @ x
    return y + x


class Holder(nn.Module):
    """A sparse tensor as a buffer, a parameter or a plain attribute."""

    def __init__(self, sparse: Tensor, function: Callable[[Tensor, Tensor], Tensor], place: str) -> None:
        super().__init__()
        self.function = function
        if place == "buffer":
            self.register_buffer("table", sparse)
        else:
            self.table: Any = nn.Parameter(sparse) if place == "parameter" else sparse

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.table, x)


def check(model: nn.Module, *calls: tuple[Tensor, ...], dynamic: Any = None) -> fxonnx.ONNXProgram:
    """Compare the file with the model for each call, of which the first one is the example."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="ONNX has no sparse tensors")
        program = fxonnx.export(model.eval(), calls[0], dynamic_shapes=dynamic)
    run_from_file(program)
    for call in calls:
        with torch.no_grad():
            expected = model(*call)
        torch.testing.assert_close(program.unflatten(program(*call)), expected)
    return program


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", ["buffer", "attribute"])
def test_products(place: str, layout: str, product: str) -> None:
    model = Holder(LAYOUTS[layout](), PRODUCTS[product], place)
    check(model, (torch.randn(3, 5),), (torch.randn(3, 2),), dynamic=({1: "n"},))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("place", ["buffer", "parameter", "attribute"])
def test_functions(place: str, function: str) -> None:
    model = Holder(_coo(), FUNCTIONS[function], place)
    check(model, (torch.randn(3, 5),), (torch.randn(3, 4),), dynamic=({1: "n"},))


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_products_of_two_sparse_tensors(layout: str) -> None:
    model = Holder(LAYOUTS[layout](), lambda s, x: torch.sparse.mm(s, s).to_dense() @ x, "buffer")
    check(model, (torch.randn(3, 5),), (torch.randn(3, 2),), dynamic=({1: "n"},))


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.bool])
def test_element_types(dtype: torch.dtype) -> None:
    check(Holder(torch.eye(3).to(dtype).to_sparse(), lambda s, x: s.to_dense() * x, "buffer"), (torch.randn(3, 3),))


def test_an_unused_sparse_tensor_is_not_stored() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.plain = nn.Linear(3, 2), torch.eye(3).to_sparse_csr()
            self.register_buffer("heads", torch.eye(3).to_sparse(), persistent=False)
            self.weight = nn.Parameter(torch.eye(3).to_sparse())

        def forward(self, x: Tensor) -> Any:
            return self.layer(x)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = fxonnx.export(Unused().eval(), (torch.randn(2, 3),))
    assert sorted(program.model.graph.initializers) == ["layer.bias", "layer.weight"]


def test_the_size_of_a_stored_tensor_is_in_a_warning() -> None:
    model = Holder(_coo(), torch.sparse.mm, "buffer")
    with pytest.warns(
        UserWarning, match=r"has no sparse tensors.*\n  'table', of size 3 x 3 with 3 values, in 36 bytes"
    ):
        fxonnx.export(model, (torch.randn(3, 5),))
    assert model.table.layout is torch.sparse_coo


def test_values_that_are_a_parameter() -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.values = nn.Parameter(torch.rand(3))
            self.register_buffer("indices", torch.tensor(INDICES))

        def forward(self, x: Tensor) -> Any:
            return torch.sparse.mm(torch.sparse_coo_tensor(self.indices, self.values * 2, (3, 3)), x)

    check(Learned(), (torch.randn(3, 5),), (torch.randn(3, 4),), dynamic=({1: "n"},))


def test_indices_and_values_that_are_inputs() -> None:
    """Values of equal indices are added."""
    model = VariadicFunction(lambda i, v, x: torch.sparse.mm(torch.sparse_coo_tensor(i, v, (3, 3)), x))
    indices = torch.tensor(INDICES)
    check(model, (indices, torch.rand(3), torch.randn(3, 2)), (indices.flip(1), torch.rand(3), torch.randn(3, 2)))


def test_values_that_forward_changes_before() -> None:
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("values", torch.ones(3))

        def forward(self, x: Tensor) -> Any:
            self.get_buffer("values").add_(x[:, 0])
            return torch.sparse_coo_tensor(torch.tensor(INDICES), self.get_buffer("values"), (3, 3)) @ x

    x = torch.randn(3, 5)
    with pytest.warns(UserWarning, match="forward writes to 'values'"):
        program = fxonnx.export(Changed(), (x,))
    torch.testing.assert_close(program(x)[0], Changed()(x))


def test_an_exported_program() -> None:
    model, x = Holder(_coo(), torch.matmul, "attribute"), torch.randn(3, 5)
    with pytest.warns(UserWarning, match="ONNX has no sparse tensors"):
        program = fxonnx.export(torch.export.export(model, (x,)))
    torch.testing.assert_close(program(x)[0], model(x))


REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "result": (
        lambda s, x: s * x,
        r"an output of the model is a sparse tensor(?s:.*)hint: return x\.to_dense\(\)",
    ),
    "values": (
        lambda s, x: (s * x).coalesce().values(),
        r"aten\.values\.default: ONNX has no such operator for a sparse tensor(?s:.*)hint: compute the dense tensor with",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    function, text = REFUSED[name]
    with pytest.raises(PrepareError, match=text):
        fxonnx.export(Holder(_coo(), function, "attribute"), (torch.rand(3, 3),), dynamic_shapes=None)


def test_an_input_that_forward_makes_sparse() -> None:
    check(Function(lambda x: x.to_sparse() @ x), (torch.rand(3, 3),), (torch.rand(3, 3),))


def test_models_without_sparse_tensors_are_not_changed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = fxonnx.export(Function(lambda x: (x @ x).to_dense()), (torch.rand(3, 3),))
    assert [node.op_type for node in program.model.graph] == ["MatMul"]
