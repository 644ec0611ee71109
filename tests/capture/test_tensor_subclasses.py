"""Weights of other types: tensor subclasses, exported as the tensors that they wrap, and modules that forward converts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fxonnx
from fxonnx._program.session import session_in_float
from tests.functions import Function
from tests.saved import run_from_file

aten = torch.ops.aten


class Scaled(torch.Tensor):
    """int8 codes and a scale; operators compute with the product, ``t`` keeps the subclass."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> Scaled:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Any], context: Any, size: Any, stride: Any) -> Scaled:
        return cls(inner["codes"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (aten.detach.default, aten.t.default):
            return cls(func(args[0].codes), func(args[0].scale))
        plain = pytree.tree_map_only(
            Scaled, lambda one: one.codes.to(one.scale.dtype) * one.scale, (args, kwargs or {})
        )
        return func(*plain[0], **plain[1])


class Pair(torch.Tensor):
    """Two tensors; operators compute with both and return pairs."""

    @staticmethod
    def __new__(cls, low: torch.Tensor, high: torch.Tensor) -> Pair:
        return torch.Tensor._make_wrapper_subclass(cls, low.shape, dtype=low.dtype)

    def __init__(self, low: torch.Tensor, high: torch.Tensor) -> None:
        self.low, self.high = low, high

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["low", "high"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Any], context: Any, size: Any, stride: Any) -> Pair:
        return Pair(inner["low"], inner["high"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def of(part: str) -> Any:
            taken = pytree.tree_map_only(Pair, lambda one: getattr(one, part), (args, kwargs or {}))
            return func(*taken[0], **taken[1])

        low, high = of("low"), of("high")
        return pytree.tree_map(lambda one, other: Pair(one, other) if isinstance(one, torch.Tensor) else one, low, high)


class NoStorage(torch.Tensor):
    """A wrapper that torch cannot flatten."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> NoStorage:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.detach.default:
            return args[0]
        plain = pytree.tree_map_only(NoStorage, lambda one: one.inner, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


def scaled() -> Scaled:
    return Scaled(torch.randint(-128, 128, (6, 4), dtype=torch.int8), torch.rand(6, 1) / 64)


def frozen(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


class Layers(nn.Module):
    """Two linear layers whose weights are subclasses, in different places."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(4, 6)
        self.first.weight = frozen(scaled())
        if place == "parameter":
            self.second.weight = frozen(scaled())
        elif place == "tied":
            self.second.weight = self.first.weight
        else:
            del self.second.weight
            if place == "attribute":
                self.second.weight = scaled()
            else:
                self.second.register_buffer("weight", scaled(), persistent=place == "buffer")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = self.first(x)
        return y - self.second(x + 1).relu()


class Pairs(nn.Module):
    """Results of calls are subclasses, also in lists."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = frozen(Pair(torch.randn(4), torch.randn(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = ((x * self.pair + 1) @ torch.arange(16.0).reshape(4, 4)).chunk(2, 1)
        both = left + right.flip(1)
        return both.low - both.high


class Nested(nn.Module):
    """A subclass that wraps subclasses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.linear.weight = frozen(Pair(scaled(), scaled()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self.linear(x)
        return both.low * both.high


def facts(model: nn.Module) -> list[Any]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    attributes = [{name: id(value) for name, value in vars(module).items()} for module in model.modules()]
    return [
        {name: (id(tensor), type(tensor)) for name, tensor in tensors},
        attributes,
        list(map(type, model.modules())),
    ]


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{place: lambda place=place: Layers(place) for place in ("parameter", "tied", "buffer", "unsaved", "attribute")},
    "results": Pairs,
    "nested": Nested,
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_unwrapped(name: str) -> None:
    model, x, larger = MODELS[name]().eval(), torch.randn(3, 4), torch.randn(7, 4)
    before = facts(model)
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},), verify="auto")
    assert facts(model) == before
    run_from_file(program)
    torch.testing.assert_close(program(larger)[0], model(larger), rtol=1e-6, atol=1e-6)
    static = fxonnx.export(model, (x,))
    torch.testing.assert_close(static.quantization.call_in_float(x)[0], model(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("strict", [False, True])
def test_weights_of_a_program_are_unwrapped(strict: bool) -> None:
    model, x = Layers("tied").eval(), torch.randn(3, 4)
    captured = torch.export.export(model, (x,), strict=strict)
    nodes, names = len(captured.graph.nodes), list(captured.state_dict)
    program = fxonnx.export(captured, verify=True)
    torch.testing.assert_close(program.quantization.call_in_float(x)[0], model(x), rtol=1e-6, atol=1e-6)
    assert (len(captured.graph.nodes), list(captured.state_dict)) == (nodes, names)
    assert type(captured.state_dict["first.weight"]) is Scaled


def test_names_and_new_weights(tmp_path: Path) -> None:
    model, other, x = Layers("parameter").eval(), Layers("parameter").eval(), torch.randn(3, 4)
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},))
    assert {"first.weight.codes", "first.weight.scale", "second.weight.scale"} <= set(program.weights.initializers)
    program.save(tmp_path / "model.onnx", weights=other.state_dict())
    (result,) = session_in_float(str(tmp_path / "model.onnx")).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), other(x), rtol=1e-6, atol=1e-6)
    program.apply_weights(other.state_dict())
    program.verify(sizes="auto")
    torch.testing.assert_close(program.quantization.call_in_float(x)[0], other(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("as_program", [False, True])
def test_a_weight_without_storage_is_refused(as_program: bool) -> None:
    model, x = nn.Sequential(nn.Linear(4, 6)).eval(), torch.randn(3, 4)
    model[0].weight = frozen(NoStorage(torch.randn(6, 4)))
    before = facts(model)
    exported = torch.export.export(model, (x,)) if as_program else model
    with pytest.raises(
        fxonnx.CaptureError, match=r"without storage.*'0.weight' \(NoStorage\)(.|\n)*__tensor_flatten__"
    ):
        fxonnx.export(exported, (x,))
    assert facts(model) == before


def test_outputs_are_plain_tensors() -> None:
    model = Function(lambda x: x).eval()
    model.pair = frozen(Pair(torch.randn(4), torch.randn(4)))
    model.forward = lambda x: x * model.pair
    with pytest.raises(
        fxonnx.CaptureError, match=r"output 'mul' is a tensor subclass, Pair\nhint: return plain tensors"
    ):
        fxonnx.export(model, (torch.randn(3, 4),))


def test_inputs_are_plain_tensors() -> None:
    model = Function(lambda x: x.low + x.high).eval()
    with pytest.raises(
        fxonnx.CaptureError, match=r"input 'x' is a tensor subclass, Pair\nhint: pass its inner tensors"
    ):
        fxonnx.export(model, (Pair(torch.randn(3), torch.randn(3)),))


class Unimplemented(Scaled):
    """Implements operators with gradients only."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not torch.is_grad_enabled() and func is not aten.detach.default:
            raise NotImplementedError(f"no {func}")
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_a_call_that_the_subclass_refuses() -> None:
    model = nn.Sequential(nn.Linear(4, 6)).eval()
    model[0].weight = frozen(Unimplemented(torch.ones(6, 4, dtype=torch.int8), torch.ones(6, 1)))
    message = r"aten.linear.default cannot be traced on the tensor subclass Unimplemented: NotImplementedError: no aten"
    with pytest.raises(fxonnx.CaptureError, match=message):
        fxonnx.export(model, (torch.randn(3, 4),))


# Modules that forward converts: ``self.classifier = self.classifier.to(torch.float32)``.


class Unchanged(nn.Module):
    """Switch Transformers' router: a conversion that changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.classifier = self.classifier.to(torch.float32)
        return self.classifier(x)


class Widened(nn.Module):
    """Layers in half precision, which compute in single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).half()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers.float()(x)


class Narrowed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.half()(x.half()).float()


@pytest.mark.parametrize("kind", [Unchanged, Widened, Narrowed])
def test_converted_in_forward(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    before = {name: (value, value.dtype, value.clone()) for name, value in model.state_dict(keep_vars=True).items()}
    program = fxonnx.export(model, (torch.randn(2, 4),), dynamic_shapes=({0: "batch"},))
    after = model.state_dict(keep_vars=True)
    assert list(before) == list(after)
    for name, (value, dtype, content) in before.items():
        assert after[name] is value
        assert value.dtype == dtype
        assert torch.equal(value, content)
    for batch in (2, 1, 5):
        x = torch.randn(batch, 4)
        torch.testing.assert_close(program(x)[0], copy.deepcopy(model)(x), atol=1e-3, rtol=1e-3)
