"""Models that fail on their own example: one error with the text of eager torch, whatever the capture reports."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import fxonnx
from fxonnx import ArgumentError, CaptureError
from fxonnx.errors import UnsupportedOperator, UnsupportedOperatorError
from tests.functions import Function

LAYERS = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
CONVOLUTION = nn.Conv2d(3, 4, 3)
ON_META = torch.ones(5, device="meta")


def _checked(x: Tensor) -> Tensor:
    if x.shape[1] != 4:
        raise ValueError(f"expected 4 features, got {x.shape[1]}")
    return x


def _asserted(x: Tensor) -> Tensor:
    assert x.shape[1] == 4, "four features"
    return x


def _missing_file(x: Tensor) -> Tensor:
    return x * float(Path("no/such/file").read_text(encoding="utf-8"))


X, Y = torch.rand(2, 5), torch.rand(2, 7)

FAILURES: dict[str, tuple[nn.Module, tuple[Tensor, ...], str]] = {
    "linear": (LAYERS, (X,), r"RuntimeError\n  mat1 and mat2 shapes cannot be multiplied \(2x5 and 4x3\)"),
    "convolution": (CONVOLUTION, (torch.rand(2, 4, 8, 8),), "to have 3 channels, but got 4 channels instead"),
    "sum": (Function(torch.add), (X, Y), r"RuntimeError\n  The size of tensor a \(5\) must match"),
    "product": (Function(torch.matmul), (X, Y), r"shapes cannot be multiplied \(2x5 and 2x7\)"),
    "cat": (Function(lambda x, y: torch.cat([x, y])), (X, Y), "Expected size 5 but got size 7"),
    "view": (Function(lambda x: x.view(x.shape[0], 3, -1)), (X,), "is invalid for input of size 10"),
    "einsum": (Function(lambda x, y: torch.einsum("bi,bi->b", x, y)), (X, Y), r"einsum\(\): subscript i has size 7"),
    "raise": (Function(_checked), (X,), r"ValueError\n  expected 4 features, got 5\n  at: .*_model_failures\.py"),
    "assert": (Function(_asserted), (X,), r"AssertionError\n  four features"),
    "device": (Function(lambda x: x * ON_META), (X,), r"RuntimeError\n  .* meta is not on the expected device cpu"),
    "file": (Function(_missing_file), (X,), r"FileNotFoundError\n  .*'no/such/file'\n  at: .*_model_failures\.py"),
    "load": (Function(lambda x: x * torch.load("no/such/file")), (X,), r"FileNotFoundError\n"),
    "attribute": (Function(lambda x: x.no_such_method()), (X,), "AttributeError\n.*no_such_method"),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FAILURES)
def test_the_model_itself_fails(name: str, dynamic: bool) -> None:
    model, inputs, text = FAILURES[name]
    axes = ({"r": 0, "c": 1} if name != "convolution" else {"r": 0, "h": 2, "w": 3}).items()
    dims = tuple({axis: f"{letter}{place}" for letter, axis in axes} for place, _ in enumerate(inputs))
    shapes = None
    if dynamic:
        shapes = (*dims, *((None,) if len(inputs) == 1 and isinstance(model, Function) else ()))[: len(inputs)]
    with pytest.raises(CaptureError, match=f"the model itself fails on the example inputs: (?s:.*){text}") as raised:
        fxonnx.export(model.eval(), inputs, dynamic_shapes=shapes)
    assert "s58" not in str(raised.value)
    assert "hint: call model(*args, **kwargs) until it runs, then export" in str(raised.value)


def _captured() -> Any:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()
    return torch.export.export(model, (X,)).module()


class Holder(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


@pytest.mark.parametrize("wrap", [lambda model: model, Holder])
def test_a_captured_module_is_not_told_to_call_eval(wrap: Callable[[Any], nn.Module]) -> None:
    model = wrap(_captured())
    with pytest.raises(NotImplementedError, match="not supported"):
        model.eval()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the model is in training mode")
        program = fxonnx.export(model, (X,))
    torch.testing.assert_close(program(X)[0], model(X).detach())


def test_other_modules_in_training_mode_are() -> None:
    model = Holder(_captured())
    model.dropout = nn.Dropout(0.5)
    with pytest.warns(UserWarning, match=r"the model is in training mode .* Call model\.eval\(\)"):
        fxonnx.export(model, (X,))


def test_the_hint_for_operators_that_are_declined() -> None:
    declined = UnsupportedOperator("aten.einsum.default", 2, "model.py:3", ("an equation with an ellipsis",))
    unknown = UnsupportedOperator("shop.discount.default", 1, "model.py:4")
    table = "pass a translation of your own: export(..., custom_translation_table={torch.ops.shop.discount.default: "
    change = "change the call in the model so that the reason does not apply"
    assert UnsupportedOperatorError([declined], 20).hint == change
    assert UnsupportedOperatorError([declined, unknown], 20).hint == f"{change}; {table}my_function}})"
    assert UnsupportedOperatorError([unknown], 20).hint == f"{table}my_function}})"


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    if not dist.is_available():
        pytest.skip("torch has no distributed package")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("part", ["the model", "'0'"])
def test_sharded_weights_have_to_be_gathered(part: str) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def make() -> nn.Sequential:
        return nn.Sequential(nn.Linear(5, 4), nn.ReLU()).eval()

    model, mesh = make(), init_device_mesh("cpu", (1,))
    fully_shard(model if part == "the model" else model[0], mesh=mesh)
    with pytest.raises(
        ArgumentError, match=f"the weights of {part} are distributed over processes by FSDP\nhint: gather them"
    ):
        fxonnx.export(model, (X,))
    # As the hint says.
    plain = make()
    plain.load_state_dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)))
    torch.testing.assert_close(fxonnx.export(plain, (X,))(X)[0], plain(X).detach())


@pytest.mark.usefixtures("process_group")
def test_weights_that_are_dtensors() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = nn.Sequential(nn.ReLU(), nn.Linear(5, 4)).eval()
    model = parallelize_module(model, init_device_mesh("cpu", (1,)), {"1": ColwiseParallel()})
    with pytest.raises(ArgumentError, match="weights of '1' are distributed over processes as DTensors\nhint: gather"):
        fxonnx.export(model, (X,))


class Inner(nn.Module):
    """A model with a wrapped part."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 1


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("wrap", [nn.parallel.DistributedDataParallel, nn.DataParallel])
def test_wrappers_inside_of_a_model(wrap: Any) -> None:
    model = Inner(wrap(nn.Linear(5, 4))).eval()
    program = fxonnx.export(model, (X,), dynamic_shapes=({0: "n"},))
    assert {*program.model.graph.initializers} > {"inner.module.weight", "inner.module.bias"}
    x = torch.rand(7, 5)
    torch.testing.assert_close(program(x)[0], model(x).detach())
