"""Python code that asks for types, identities, texts and modes: the program has the results of eager torch."""

from __future__ import annotations

import copy
import functools
import numbers
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fxonnx
from fxonnx import CaptureError, PrepareError
from fxonnx._capture.patches import applied
from fxonnx._capture.suspicions.departures import DepartureKind, recorded_departures
from fxonnx._capture.suspicions.eager_types import eager_types, type_of

from ..functions import Function

SEVERAL = (int, float)
NAMES = {int: 1.0, torch.Tensor: 2.0}


class Asking(nn.Module):
    """A module whose results depend on an answer: ``x + 1`` if ``asks`` is true, else ``x - 1``."""

    def __init__(self, asks: Callable[..., Any]) -> None:
        super().__init__()
        self.asks = asks
        self.activation = nn.ReLU()
        self.w = nn.Parameter(torch.arange(12.0).view(3, 4))
        self.b = nn.Buffer(torch.arange(4.0))

    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if self.asks(self, x) else x - 1


class Two(Asking):
    """A module of two inputs."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = self.asks(self, x, y)
        return found


def _match(m: Asking, x: Tensor) -> bool:
    match x.shape[0]:
        case int():
            return True
    return False


@functools.singledispatch
def _is_number(n: object) -> bool:
    return False


@_is_number.register
def _(n: int) -> bool:
    return True


def _item(m: Asking, x: Tensor) -> bool:
    n = x.argmax().item()
    return isinstance(n, int) and type(x.sum().item()) is float


def _int(m: Asking, x: Tensor) -> bool:
    n = int(x.abs().sum())
    return type(n) is int and type(x.ndim) is int


def _in_no_grad(m: Asking, x: Tensor) -> bool:
    with torch.no_grad():
        inner = torch.is_grad_enabled()
    return torch.is_grad_enabled() and not inner


def _is_long(x: Tensor) -> bool:
    return x.shape[0] > 2


def _pattern_of_truth(m: Asking, x: Tensor) -> bool:
    match x.shape[0] > 2:
        case True:
            return True
    return False


def _is_positive(x: Tensor) -> Any:
    return (x.sum() > 0).item()


def _matches_value(x: Tensor) -> Tensor:
    match _is_positive(x):
        case True:
            return x * 2
        case _:
            return x - 1


def _variable_is_true(m: Asking, x: Tensor) -> bool:
    is_long = x.shape[0] > 2
    return is_long is True


SAME: dict[str, Callable[..., Any]] = {
    "isinstance int": lambda m, x: isinstance(x.shape[0], int),
    "isinstance of several": lambda m, x: isinstance(x.size(0), (str, (float, int))),
    "isinstance of a union": lambda m, x: isinstance(x.size(0), int | None),
    "isinstance of a global tuple": lambda m, x: isinstance(x.numel(), SEVERAL),
    "isinstance Integral": lambda m, x: isinstance(x.shape[0], numbers.Integral),
    "isinstance Number": lambda m, x: isinstance(len(x.shape) * x.shape[0], numbers.Number),
    "isinstance float": lambda m, x: isinstance(x.shape[0] / 2, float) and not isinstance(x.shape[0] / 2, int),
    "isinstance bool": lambda m, x: isinstance(x.shape[0] > 2, bool) and isinstance(x.shape[0] > 2, int),
    "no str": lambda m, x: not isinstance(x.shape[0], str | float | bool),
    "type is int": lambda m, x: type(x.shape[0]) is int,
    "type of a size == int": lambda m, x: type(x.size(0)) == int,  # noqa: E721
    "type is float": lambda m, x: type(x.shape[0] / 2) is float,
    "type is bool": lambda m, x: type(x.shape[0] == 5) is bool,
    "type in": lambda m, x: type(x.shape[0]) in SEVERAL,
    "type as a key": lambda m, x: NAMES.get(type(x.shape[0])) == 1.0 and NAMES.get(type(x)) == 2.0,
    "type as a value": lambda m, x: list(map(type, x.shape)) == [int, int],
    "name of the type": lambda m, x: type(x.shape[0]).__name__ == "int" and type(x).__name__ == "Tensor",
    "issubclass": lambda m, x: issubclass(type(x.shape[0]), int) and issubclass(type(x), torch.Tensor),
    "all of the shape": lambda m, x: all(isinstance(n, int) for n in x.shape),
    "type Tensor": lambda m, x: type(x) is torch.Tensor,
    "type of a result": lambda m, x: type(x * 2) is torch.Tensor and type(m.w.detach()) is torch.Tensor,
    "type Parameter": lambda m, x: type(m.w) is nn.Parameter and type(m.b) is type(x),
    "isinstance Parameter": lambda m, x: isinstance(m.w, nn.Parameter) and not isinstance(x, nn.Parameter),
    "isinstance Buffer": lambda m, x: isinstance(m.b, nn.Buffer) and not isinstance(m.w * 1, nn.Parameter),
    "isinstance FloatTensor": lambda m, x: isinstance(x, torch.FloatTensor) and not isinstance(x, torch.LongTensor),
    "ordinary types": lambda m, x: type([x]) is list and isinstance(m, Asking) and isinstance(type(m), type),
    "Size": lambda m, x: type(x.shape) is torch.Size and isinstance(x.shape, tuple) and len(x.shape) == x.ndim == 2,
    "grad mode": lambda m, x: torch.is_grad_enabled(),
    "grad mode in no_grad": _in_no_grad,
    "inference mode": lambda m, x: torch.is_inference_mode_enabled(),
    "requires_grad": lambda m, x: m.w.requires_grad and (x @ m.w.T).requires_grad and not x.requires_grad,
    "is_leaf": lambda m, x: x.is_leaf and m.w.is_leaf and not (x @ m.w.T).is_leaf,
    "device": lambda m, x: x.device == torch.device("cpu") and str(x.device) == "cpu" and not x.is_cuda,
    "layout": lambda m, x: x.is_contiguous() and x.stride() == (4, 1),
    "stride of a size": lambda m, x: x.t().contiguous().stride(0) == x.shape[0],
    "id": lambda m, x: id(m.w) in {id(p) for p in m.parameters()} and id(x) != id(x.view(x.shape)),
    "hash": lambda m, x: {x: 1, m.w: 2}[x] == 1,
    "identity": lambda m, x: x.contiguous() is x and x.float() is x and m.w is next(m.parameters()),
}
"""Questions whose answer is eager torch's."""


def check(program: Any, model: nn.Module, *inputs: Tensor) -> None:
    expected = copy.deepcopy(model)(*copy.deepcopy(inputs)).detach()
    (result,) = program(*(x.detach().clone() for x in inputs))
    np.testing.assert_allclose(result, expected, rtol=1e-5)


class AskingAll(Asking):
    """A module whose result has one element for each question: whether its answer is true."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[0, 0] * 0 + (1 if asks(self, x) else 0) for asks in SAME.values()])


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
def test_answers_of_eager_torch(is_dynamic: bool) -> None:
    model = AskingAll(lambda m, x: True).eval()
    program = fxonnx.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: "n"},) if is_dynamic else None)
    for size in (3, 5 if is_dynamic else 3):
        x = torch.randn(size, 4)
        (result,) = program(x)
        answers = dict(zip(SAME, result.tolist(), strict=True))
        assert answers == dict(zip(SAME, model(x).tolist(), strict=True))


@pytest.mark.parametrize("asks", [_item, _int, SAME["type is int"]], ids=["item", "int", "type"])
def test_types_of_numbers_in_data(asks: Callable[..., Any]) -> None:
    model = Asking(asks).eval()
    program = fxonnx.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: "n"},))
    check(program, model, torch.randn(5, 4))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_modes_of_the_call(mode: Callable[[], Any]) -> None:
    model = Asking(lambda m, x: torch.is_grad_enabled() and (x @ m.w.T).requires_grad).eval()
    x = torch.randn(3, 4)
    with mode():
        program = fxonnx.export(model, (x,))
        check(program, model, x)


def test_types_in_branches() -> None:
    """TorchDynamo traces the functions of ``torch.cond``; others are rewritten."""

    def true(x: Tensor) -> Tensor:
        is_eager = isinstance(x.shape[0], int) and type(x.shape[0]) is int and type(x) is torch.Tensor
        return x * 2 if is_eager and isinstance(x, Tensor | int) and not isinstance(x, type) else x * 3

    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.cond(x.sum() > 0, true, lambda x: x * 4, (x,))
            if x.sum() < 0:
                y = y + (1 if type(x) is torch.Tensor and isinstance(x.shape[0], int) else 2)
                y = y * (3 if x.__class__.__name__ == "Tensor" and x.shape[0].__class__ is int else 4)
            return y

    model = Branches().eval()
    program = fxonnx.export(model, (torch.ones(3, 4),), dynamic_shapes=({0: "n"},))
    for x in (torch.ones(3, 4), -torch.ones(5, 4)):
        check(program, model, x)


def test_type_where_int_is_replaced() -> None:
    model = Asking(lambda m, x: type(x.view(int(x.shape[0]), -1)) is torch.Tensor and type(int(x.shape[0])) == int)  # noqa: E721
    program = fxonnx.export(model.eval(), (torch.randn(3, 4),), dynamic_shapes=({0: "n"},))
    check(program, model, torch.randn(5, 4))


DIFFERENT: dict[str, tuple[Callable[..., Any], str]] = {
    "class of a size": (lambda m, x: x.shape[0].__class__ is int, "__class__"),
    "class of a tensor": (lambda m, x: x.__class__.__name__ == "Tensor", "__class__"),
    "class of a parameter": (lambda self, x: self.w.__class__ is nn.Parameter, "__class__"),
    "pattern": (_match, "class pattern"),
    "singledispatch": (lambda m, x: _is_number(x.shape[0]), "singledispatch function _is_number"),
    "is True": (lambda m, x: (x.shape[0] > 2) is True, "is"),
    "variable is True": (_variable_is_true, "is"),
    "result is True": (lambda m, x: _is_long(x) is True, "is"),
    "pattern True": (_pattern_of_truth, "is"),
    "is a size": (lambda m, x: x.shape[0] is x.size(0), "is"),
    "text of a size": (lambda m, x: str(x.shape[0]) == "3", "the text of a size"),
    "text of a shape": (lambda m, x: f"{x.shape}" == "torch.Size([3, 4])", "the text of a size"),
    "text of a tensor": (lambda m, x: repr(x).startswith("tensor("), "the text of a tensor"),
    "layout": (lambda m, x: x.t().is_contiguous(), "is_contiguous"),
    "layout of channels": (
        lambda m, x: x[None, :, :, None].is_contiguous(memory_format=torch.channels_last),
        "is_contiguous",
    ),
    "format of a tensor": (lambda m, x: f"{x}".startswith("tensor("), "the text of a tensor"),
}
"""Questions whose answer differs during a capture, with the departure."""


def departs(detail: str, function: str, *args: Any, **kwargs: Any) -> Any:
    """Check that an export records a departure, and return it, or that it refuses the difference."""
    try:
        program = fxonnx.export(*args, **kwargs)
    except CaptureError as error:
        assert detail in str(error)  # noqa: PT017 - the export need not fail
        return None
    departures = [item for item in program.record.proof.departures if item.kind is DepartureKind.INTROSPECTION]
    assert detail in [item.detail for item in departures]
    assert all(__file__ in item.line and function in item.line for item in departures if item.line)
    return program


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_answers_are_departures(name: str) -> None:
    asks, detail = DIFFERENT[name]
    model = Asking(asks).eval()
    program = departs(detail, asks.__name__, model, (torch.randn(3, 4),), dynamic_shapes=({0: "n"},))
    for n in () if program is None else (1, 2, 3, 5):
        check(program, model, torch.randn(n, 4))


class AsksFromFour(nn.Module):
    """The branch in which the capture differs is for a count that is neither in the example nor small."""

    def __init__(self, asks: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.asks = asks

    def forward(self, x: Tensor, k: Tensor) -> Tensor:
        if -2 < k < 4:
            return x + 1
        return x * (2 if self.asks(x) else 3)


@pytest.mark.parametrize(
    "asks",
    [lambda x: _match(Asking(min), x), lambda x: str(x.shape[0]).isdigit(), lambda x: x[0, :1].__class__ is Tensor],
    ids=["pattern", "text", "class"],
)
def test_branches_for_other_counts_are_compared(asks: Callable[[Tensor], bool]) -> None:
    with pytest.raises(CaptureError, match=r"inputs made of the example: counts of -[23]"):
        fxonnx.export(AsksFromFour(asks).eval(), (torch.randn(3, 4), torch.tensor(0)), dynamic_shapes=({0: "n"}, None))


def test_a_true_value_for_other_counts_is_compared() -> None:
    function = lambda x, k: x * 2 if (k > 7).item() is True else x  # noqa: E731
    with pytest.raises(CaptureError, match="inputs made of the example: counts of 8"):
        fxonnx.export(Function(function).eval(), (torch.randn(3, 4), torch.tensor(0)))


@pytest.mark.parametrize(
    "function",
    [
        _matches_value,
        lambda x: x * 2 if _is_positive(x) is True else x - 1,
        lambda x: x * 2 if torch.equal(x, x.abs()) is True else x - 1,
    ],
    ids=["match", "is", "equal"],
)
def test_the_truth_of_a_tensor_is_an_object_of_its_own(function: Callable[[Tensor], Tensor]) -> None:
    """The branch of the capture is right at the example, and not where the value is true."""
    with pytest.raises(
        CaptureError, match=r"inputs made of the example(?s:.*)the value of a boolean tensor \(.*:\d+ in"
    ):
        fxonnx.export(Function(function).eval(), (-torch.ones(3, 4),), dynamic_shapes=({0: "n"},))


class AgreesAtExample(nn.Module):
    """Another branch is taken during the capture, whose results are the same for small inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=9) if x.__class__.__name__ == "Tensor" else x * 0 + 9


def test_other_values_show_the_branch_of_the_capture() -> None:
    with pytest.raises(CaptureError, match=r"does not compute what the model computes, at .*: multiplied by 10"):
        fxonnx.export(AgreesAtExample().eval(), (torch.rand(3, 4) + 1,))


TEXTS: dict[str, Callable[..., Any]] = {
    "f-string": lambda m, x: f"rows {x.shape[0]}" == "rows 24",
    "format": lambda m, x: "{}".format(x.shape[0]) == "24",  # noqa: UP032 - the call is the case
    "percent": lambda m, x: "%s" % x.shape[0] == "24",  # noqa: UP031
    "key": lambda m, x: f"{x.shape[0]}" in {"12": 1, "24": 2},
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_sizes_are_compared_at_the_sizes_in_other_texts(name: str) -> None:
    with pytest.raises(CaptureError, match=r"does not compute what the model computes, at .*: n = (12|24)"):
        fxonnx.export(Asking(TEXTS[name]).eval(), (torch.randn(3, 4),), dynamic_shapes=({0: "n"},))


class CachedByText(nn.Module):
    """A module that looks up tensors that it has stored under the text of a size."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        key = f"grid_{x.shape[0]}"
        if key not in self.cache:
            self.cache[key] = torch.arange(x.shape[0])[:, None]
        return x + self.cache[key]


def test_a_cache_by_the_text_of_a_size_stays_dynamic() -> None:
    model = CachedByText().eval()
    program = fxonnx.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: "n"},))
    check(program, model, torch.randn(24, 4))


class Copying(nn.Module):
    """The copy has the same values, also where an axis of size 1 makes it unnecessary."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.t()
        return (y if y.is_contiguous() else y.contiguous()).view(-1)


def test_a_copy_by_the_layout_is_valid_for_all_sizes() -> None:
    program = fxonnx.export(Copying().eval(), (torch.randn(3, 4),), dynamic_shapes=({0: "n", 1: "m"},))
    for shape in ((3, 4), (1, 4), (3, 1), (1, 1), (6, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x)[0], Copying()(x))


ORDINARY: dict[str, Callable[..., Any]] = {
    "isinstance": lambda m, x: isinstance(x, Tensor) and isinstance(m, nn.Module),
    "None": lambda m, x: (m.w is None) is not None and x is not None,
    "class of self": lambda m, x: type(m).__name__,
    "class of a module": lambda self, x: self.activation.__class__.__name__,
    "layout": lambda m, x: x.is_contiguous() and (x * 2).view(-1, 4).is_contiguous(),
    "flag": lambda m, x: m.training is False,
    "dtype": lambda m, x: x.dtype is torch.float32,
    "check": lambda m, x: torch._assert(x.dim() == 2, f"got {x.shape}") is None,
    "checked size": lambda m, x: torch._check(x.shape[1] == 4, lambda: f"got {x.shape}") is None,
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_code_is_no_departure(name: str) -> None:
    with recorded_departures() as found:
        fxonnx.export(Asking(ORDINARY[name]).eval(), (torch.randn(3, 4),), dynamic_shapes=({0: "n"},))
    assert not found


class Scaled(nn.Parameter):
    """A parameter of a class of its own."""


def test_parameters_of_another_class_are_a_departure() -> None:
    model = Asking(lambda m, x: isinstance(m.w, Scaled)).eval()
    model.w = Scaled(torch.ones(3, 4))
    departs("parameters of class Scaled", "", model, (torch.randn(3, 4),))


def test_data_ptr_is_refused() -> None:
    model = Asking(lambda m, x: x.data_ptr() == x[0].data_ptr()).eval()
    with pytest.raises(CaptureError, match=r"data pointer(.|\n)*at: .*test_introspection.py.*x.data_ptr\(\)"):
        fxonnx.export(model, (torch.randn(3, 4),))


def _write(tensor: Tensor, result: Tensor) -> Tensor:
    tensor.add_(1)
    return result * 2


def pair(model: Asking) -> tuple[Tensor, Tensor]:
    x = torch.randn(3, 4)
    return x, x


def view(model: Asking) -> tuple[Tensor, Tensor]:
    x = torch.randn(3, 4)
    return x, x.view(3, 4)


def row(model: Asking) -> tuple[Tensor, Tensor]:
    x = torch.randn(3, 4)
    return x, x[0]


def weight(model: Asking) -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4), model.w


def data(model: Asking) -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4), model.w.data


def buffer(model: Asking) -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4), model.b


def rows(model: Asking) -> tuple[Tensor, Tensor]:
    x = torch.randn(2, 3, 4)
    return x[0], x[1]


READ: dict[str, tuple[Callable[[Asking], tuple[Tensor, Tensor]], Callable[..., Tensor]]] = {
    "pair": (pair, lambda m, x, y: x @ y.T),
    "view": (view, lambda m, x, y: x @ y.T),
    "row": (row, lambda m, x, y: x * y),
    "weight": (weight, lambda m, x, y: x @ m.w.T + y.sum()),
    "data": (data, lambda m, x, y: x @ m.w.T + y.sum()),
    "buffer": (buffer, lambda m, x, y: x * m.b - y),
    "written and not read again": (pair, lambda m, x, y: _write(x, y * 2 + x) if m is None else x * y),
    "rows written": (rows, lambda m, x, y: _write(y, x)),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.filterwarnings("ignore:forward writes to")
def test_shared_inputs_are_separate(name: str) -> None:
    inputs, function = READ[name]
    model = Two(function).eval()
    args = inputs(model)
    program = fxonnx.export(model, args)
    check(program, model, *args)
    check(program, model, *(torch.randn(x.shape) for x in args))


WRITTEN: dict[str, tuple[Callable[[Asking], tuple[Tensor, Tensor]], Callable[..., Tensor], type[Exception], str]] = {
    "pair": (pair, lambda m, x, y: _write(x, y), CaptureError, "writes to 'x' and then reads 'y'"),
    "pair, second": (pair, lambda m, x, y: _write(y, x), CaptureError, "writes to 'y' and then reads 'x'"),
    "view": (view, lambda m, x, y: _write(x[0], y), CaptureError, "writes to 'x' and then reads 'y'"),
    "row": (row, lambda m, x, y: _write(x, y), PrepareError, "writes to memory that x and y share"),
    "row, second": (row, lambda m, x, y: _write(y, x), PrepareError, "writes to memory that x and y share"),
    "data": (data, lambda m, x, y: _write(y, m.w), CaptureError, "writes to 'y' and then reads the weight 'w'"),
    "buffer": (buffer, lambda m, x, y: _write(m.b, x * y), CaptureError, "writes to the weight 'b' and then reads 'y'"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_writes_seen_through_an_alias_are_refused(name: str) -> None:
    inputs, function, error, message = WRITTEN[name]
    model = Two(function).eval()
    if name == "buffer":
        model.asks = lambda m, x, y: _write(m.b, x) + y
    with pytest.raises(error, match=rf"{message}(.|\n)*test_introspection.py:\d+(.|\n)*clone\(\)"):
        fxonnx.export(model, inputs(model))


IDENTICAL: Sequence[tuple[Callable[[Asking], tuple[Tensor, Tensor]], Callable[..., Any], str]] = (
    (pair, lambda m, x, y: x * 2 if x is y else x * 3, "'y' shares memory with 'x' in the example"),
    (weight, lambda m, x, y: x * 2 if y is m.w else x * 3, "'y' shares memory with the weight 'w' in the example"),
)


@pytest.mark.parametrize(("inputs", "function", "detail"), IDENTICAL, ids=["pair", "weight"])
def test_identity_of_inputs_is_a_departure(
    inputs: Callable[[Asking], tuple[Tensor, Tensor]], function: Callable[..., Any], detail: str
) -> None:
    model = Two(function).eval()
    departs(detail, function.__name__, model, inputs(model))


def test_other_threads_see_the_builtins() -> None:
    namespace: dict[str, Any] = {}
    answers: list[Any] = []
    fake = torch._subclasses.FakeTensorMode().from_tensor(torch.ones(2))

    def ask() -> None:
        answers.append((eval("type(fake)", namespace, {"fake": fake}), isinstance(type, type)))

    with eager_types((), [namespace]), applied(()):
        ask()
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert namespace["type"] is type_of
    assert answers == [(torch.Tensor, True), (type(fake), True)]
    assert not namespace.keys() & {"isinstance", "issubclass", "type"}


@pytest.mark.parametrize("fails", [False, True])
def test_modules_are_restored(fails: bool) -> None:
    def asks(m: Asking, x: Tensor) -> bool:
        if fails:
            raise ValueError("on purpose")
        return isinstance(x.shape[0], int)

    before = dict(globals())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fxonnx.export(Asking(asks).eval(), (torch.randn(3, 4),))
        except CaptureError:
            assert fails
    assert globals().keys() == before.keys()
