"""Data-dependent guards of Python that are resolved without the example: constants and checks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxonnx
from fxonnx import AssumptionKind
from tests.functions import Function

from .captures import capture


class WithBuffers(nn.Module):
    """A function of a module with buffers and a weight."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("three", torch.tensor(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.weight = nn.Parameter(torch.tensor([0.5, 0.5]))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def _equal_masks(self: Any, x: Tensor) -> Tensor:
    mask = torch.tril(torch.ones(4, 4)).bool()
    return x + 1 if (mask == torch.ones(4, 4).tril().bool()).all() else x - 1


def _lengths(self: Any, x: Tensor) -> Tensor:
    return x.split(torch.tensor([1, 3]).tolist(), dim=1)[1]


def _arithmetic_of_buffers(self: Any, x: Tensor) -> Tensor:
    frames = torch.ceil((self.three - 1) / 2).to(torch.int64)
    return x[:, :frames] if frames > 0 else x


def _weights(self: Any, x: Tensor) -> Tensor:
    return x + 1 if abs(self.weight.sum() - 1) < 1e-5 else x


def _views_and_writes(self: Any, x: Tensor) -> Tensor:
    table = torch.zeros(4)
    part = table[1:3]
    part += 1
    table.mul_(2)
    return x + 1 if part.sum() == 4 and table[0] == 0 else x


def _constant_mask(self: Any, x: Tensor) -> Tensor:
    picked = x[:, torch.tensor([True, False, True, True])]
    return picked + 1 if picked.shape[1] == 3 else picked


def _nonzero(self: Any, x: Tensor) -> Tensor:
    for row in torch.tensor([[1, 0], [0, 1]]).nonzero():
        x = x + row.sum()
    return x


def _unique(self: Any, x: Tensor) -> Tensor:
    values = torch.unique(torch.tensor([2, 1, 2]))
    return x[:, : len(values)]


def _equal(self: Any, x: Tensor) -> Tensor:
    return x + 1 if torch.equal(self.three, torch.tensor(3)) and torch.ones(2).equal(torch.ones(2)) else x


def _allclose(self: Any, x: Tensor) -> Tensor:
    return x + 1 if torch.allclose(torch.ones(2) / 3, torch.tensor(0.33333334)) else x


def _loop(self: Any, x: Tensor) -> Tensor:
    step = torch.tensor(0)
    while step < 3:
        x, step = x + 1, step + 1
    return x


def _formats(self: Any, x: Tensor) -> Tensor:
    return getattr(self, f"{'thr' if self.three == 3 else ''}ee") * x + len(
        f"{torch.tensor(12)}{torch.tensor(0.5):.2f}"
    )


CONSTANTS = {
    "equal masks": _equal_masks,
    "lengths": _lengths,
    "arithmetic of buffers": _arithmetic_of_buffers,
    "weights": _weights,
    "views and writes": _views_and_writes,
    "constant mask": _constant_mask,
    "nonzero": _nonzero,
    "unique": _unique,
    "equal": _equal,
    "allclose": _allclose,
    "loop": _loop,
    "formats": _formats,
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", CONSTANTS.values(), ids=CONSTANTS)
def test_values_that_depend_on_no_input(function: Any, dynamic: bool) -> None:
    model = WithBuffers(function).eval()
    program = fxonnx.export(model, (torch.rand(3, 4),), dynamic_shapes={"x": {0: "n"}} if dynamic else None)
    for size in (3, 1, 5) if dynamic else (3,):
        x = torch.rand(size, 4)
        torch.testing.assert_close(program(x)[0], model(x))
    assert all(assumption.kind is AssumptionKind.CONSTANT for assumption in program.record.assumptions)


def _flags(x: Tensor) -> Any:
    return torch.equal(x, x.abs()), torch.allclose(x, x * 1.000001), (x > 0).any().item(), bool((x != 0).all())


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_returned_answers(dynamic: bool) -> None:
    model = Function(_flags).eval()
    program = fxonnx.export(model, (torch.rand(3, 4),), dynamic_shapes={"x": {0: "n"}} if dynamic else None)
    for size in (3, 0, 1, 5) if dynamic else (3,):
        for x in (torch.rand(size, 4) + 1, torch.rand(size, 4) - 0.5, torch.zeros(size, 4)):
            assert [flag.item() for flag in program(x)] == list(model(x))
    assert [node.op_type for node in program.model.graph].count("ReduceMin") == 3


def _same(x: Tensor, compare: Any = torch.equal) -> Any:
    return compare(x, x.abs())


def test_functions_that_the_model_has_stored() -> None:
    model = Function(_same).eval()
    program = fxonnx.export(model, (torch.ones(3),))
    assert [bool(program(x)[0]) for x in (torch.ones(3), -torch.ones(3))] == [True, False]


def _one_hot(x: Tensor) -> Tensor:
    classes = nn.functional.one_hot(x)
    return classes.sum(0) + torch.arange(classes.shape[-1])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_number_of_classes(dynamic: bool) -> None:
    model = Function(_one_hot).eval()
    program = fxonnx.export(model, (torch.tensor([0, 2]),), dynamic_shapes={"x": {0: "n"}} if dynamic else None)
    for x in ([0, 2], [4, 1], [0, 0], *([[5], [1, 2, 3, 0]] if dynamic else [])):
        torch.testing.assert_close(program(torch.tensor(x))[0], model(torch.tensor(x)))


def test_a_constant_is_recorded_with_its_line() -> None:
    (assumption,) = fxonnx.export(WithBuffers(_weights).eval(), (torch.rand(3, 4),)).record.assumptions
    assert str(assumption).endswith(
        "if abs(self.weight.sum() - 1) < 1e-5 else x -> True (does not depend on the inputs)"
    )


def _written_by_input(self: Any, x: Tensor) -> Tensor:
    table = torch.zeros(4)
    view = table[1:]
    view[0] = x[0, 0]
    return x + 1 if table[1] == 0 else x


def _written_buffer(self: Any, x: Tensor) -> Tensor:
    self.steps += 1
    return x + 1 if self.steps > 1 else x


def _random(self: Any, x: Tensor) -> Tensor:
    return x + 1 if torch.rand(1) > 0.5 else x


def _uninitialized(self: Any, x: Tensor) -> Tensor:
    return x + 1 if torch.empty(2).sum() == 0 else x


def _input(self: Any, x: Tensor) -> Tensor:
    return x + 1 if (x * torch.ones(4)).sum() > 0 else x


@pytest.mark.parametrize(
    "function", [_written_by_input, _written_buffer, _random, _uninitialized, _input], ids=lambda one: one.__name__
)
def test_other_values_are_not_constants(function: Any) -> None:
    captured = capture(WithBuffers(function).eval(), (torch.rand(3, 4),))
    assert captured.rewrites
    assert not captured.assumptions


def test_weights_are_not_written() -> None:
    def doubled(self: Any, x: Tensor) -> Tensor:
        self.steps.add_(7)
        return x[:, : int(self.three)]

    model = WithBuffers(doubled).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        capture(model, (torch.rand(3, 4),))
    assert (int(model.steps), int(model.three)) == (0, 3)


def _raises(x: Tensor) -> Tensor:
    if not x.isfinite().all():
        raise ValueError("not finite")
    return x * 2


def _raises_in_else(x: Tensor) -> Tensor:
    if (x < 1000).all() and x.dim() == 2:
        y = x + 1
    else:
        raise ValueError
    return y


def _asserts(x: Tensor) -> Tensor:
    assert (x > -100).all(), "too small"
    return x + 1


def _asserts_negation(x: Tensor) -> Tensor:
    assert not x.isnan().any() and x.dim() == 2  # noqa: PT018 - the condition under test
    return x + 1


def _logs(x: Tensor) -> Tensor:
    if x.isnan().any():
        warnings.warn("NaN", stacklevel=1)
    return x * 2


def _calls_bool(x: Tensor) -> Tensor:
    valid = (x < 1000).all()
    if not bool(valid):
        raise ValueError
    return x * 2


def _compares_item(x: Tensor) -> Tensor:
    if x.max().item() > 1000:
        message = f"too large: {x.max()}"
        raise ValueError(message)
    return x * 3


def _combines(x: Tensor) -> Tensor:
    if x.max() > 1000 or (x.min() < -5 and not (x < 3).any()):
        raise ValueError
    return x * 3


def _is_nested(x: Tensor) -> Tensor:
    if x.dim() == 2:
        if x.isnan().any():
            raise ValueError
        y = x
    else:
        y = -x
    return y + 1


def _asks_in_a_function(x: Tensor) -> Tensor:
    if _any(x.isnan()):
        raise ValueError
    return x + 1


def _any(mask: Tensor) -> bool:
    return bool(mask.any())


def _negates_the_last_operand(x: Tensor) -> Tensor:
    if x is not None and not torch.all(x[:-1] <= x[:1] + 9):
        raise ValueError
    return x + 1


def _error_that_no_handler_catches(x: Tensor) -> Tensor:
    try:
        y = _raises(x)
    except (IndexError, RuntimeError) as error:
        raise TypeError from error
    return y


CHECKS = (
    *(_raises, _raises_in_else, _asserts, _asserts_negation, _logs),
    *(_calls_bool, _compares_item, _combines, _is_nested, _asks_in_a_function),
    *(_negates_the_last_operand, _error_that_no_handler_catches),
)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", CHECKS, ids=lambda one: one.__name__)
def test_branches_whose_other_side_raises(function: Any, dynamic: bool) -> None:
    model = Function(function).eval()
    program = fxonnx.export(model, (torch.rand(3, 4),), dynamic_shapes={"x": {0: "n"}} if dynamic else None)
    for size in (3, 1, 5) if dynamic else (3,):
        x = torch.rand(size, 4) - 0.5
        torch.testing.assert_close(program(x)[0], model(x))
    assert {assumption.kind for assumption in program.record.assumptions} == {AssumptionKind.CHECK}
    assert all(
        "otherwise the model only raises or logs" in str(assumption) for assumption in program.record.assumptions
    )


def _check_before_another_condition(x: Tensor) -> Tensor:
    if (x < -9).any():
        raise ValueError("too small")
    if x.dim() == 3:
        return x + 1
    return x - 1


def test_a_check_beside_other_conditions_without_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.10 knows the line of a condition only."""
    found = "fxonnx._capture.data_dependence.checks._position"
    monkeypatch.setattr(found, lambda frame: (frame.f_lineno, frame.f_lineno, -1, -1))
    model, x = Function(_check_before_another_condition).eval(), torch.rand(3, 4)
    torch.testing.assert_close(fxonnx.export(model, (x,))(x)[0], model(x))


def _logs_or_scales(x: Tensor) -> Tensor:
    if x.max() > 1e6:
        warnings.warn("too large to scale", stacklevel=1)
    else:
        x = x * 2
    return x


def _scales_or_logs(x: Tensor) -> Tensor:
    if not (x.max() > 1e6):
        x = x * 2
    else:
        warnings.warn("too large to scale", stacklevel=1)
    return x


@pytest.mark.parametrize("function", [_logs_or_scales, _scales_or_logs], ids=lambda one: one.__name__)
def test_a_log_message_whose_other_side_computes_is_a_branch(function: Any) -> None:
    model = Function(function).eval()
    program = fxonnx.export(model, (torch.rand(3, 4),), dynamic_shapes={"x": {0: "n"}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (torch.rand(2, 4), torch.rand(5, 4) + 1e7):
            torch.testing.assert_close(program(x)[0], model(x))


def _branches(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def _asks_again_in_a_handler(x: Tensor) -> Tensor:
    try:
        return _branches(x)
    except RuntimeError as error:
        if x.numel() > 0 and x.numel() <= int(x.sum()):
            raise ValueError from error
        raise


def _changes_before_it_raises(x: Tensor) -> Tensor:
    if x.sum() > 0:
        for _ in range(2):
            x = x + 1
        if x.dim() == 2:
            raise ValueError
    return x


def _raises_deeper(x: Tensor) -> Tensor:
    if x.sum() > 0:
        if x.dim() == 3:
            raise ValueError
        return x
    return -x


def test_other_branches_are_not_checks() -> None:
    with pytest.raises(
        fxonnx.CaptureError, match=r'the value depends on "x": pass data_dependent="example".* or frozen=\["x"\]'
    ):
        capture(Function(_changes_before_it_raises).eval(), (-torch.rand(3, 4),))


def _handles_the_error(x: Tensor) -> Tensor:
    try:
        if x.sum() > 0:
            raise ValueError
        y = x + 1
    except ValueError:
        y = x - 1
    return y


def _caller_handles_the_error(x: Tensor) -> Tensor:
    try:
        y = _raises(x)
    except ValueError:
        y = x - 1
    return y


def _handles_a_base_of_the_error(x: Tensor) -> Tensor:
    try:
        y = _raises(x)
    except (TypeError, Exception):  # noqa: BLE001 - the case
        y = x - 1
    return y


class _Journal:
    """Its method ``info`` is not a log message."""

    def info(self, x: Tensor) -> None:
        x.add_(1)


def _calls_a_method_named_info(x: Tensor) -> Tensor:
    y, journal = x.clone(), _Journal()
    if x.sum() > 0:
        journal.info(y)
    return y


@pytest.mark.parametrize(
    "function",
    [_handles_the_error, _caller_handles_the_error, _handles_a_base_of_the_error, _calls_a_method_named_info],
    ids=lambda one: one.__name__,
)
def test_handled_errors_and_other_methods_are_not_checks(function: Any) -> None:
    """Such a model is refused, or right for inputs that take either branch."""
    model = Function(function).eval()
    try:
        program = fxonnx.export(model, (torch.rand(3, 4),))
    except fxonnx.CaptureError as error:
        assert "asks for the value of a tensor" in str(error)  # noqa: PT017 - either outcome is right
        return
    for x in (torch.ones(3, 4), -torch.ones(3, 4), torch.full((3, 4), torch.inf)):
        torch.testing.assert_close(program(x)[0], model(x))


@pytest.mark.parametrize(
    "function", [_branches, _raises_deeper, _asks_again_in_a_handler], ids=lambda one: one.__name__
)
def test_branches_that_continue_are_rewritten(function: Any) -> None:
    captured = capture(Function(function).eval(), (torch.rand(3, 4),))
    assert captured.rewrites
    assert not captured.assumptions


def test_torch_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    capture(Function(_raises).eval(), (torch.rand(3, 4),))
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_the_error_names_the_line_and_the_option() -> None:
    with pytest.raises(
        fxonnx.CaptureError, match=r"(?s)at: .*if x\.sum\(\) > 0:\n  tried: .*\nhint: .*data_dependent=\"example\""
    ):
        fxonnx.export(Function(_changes_before_it_raises).eval(), (-torch.rand(3, 4),))


def _looks_up_a_value(x: torch.Tensor) -> torch.Tensor:
    return x * {0: 1.0, 1: 2.0, 2: 3.0}[x.argmax().item()]


def _looks_up_a_size(x: torch.Tensor) -> torch.Tensor:
    return x * {2: 1.0, 3: 2.0}[x.shape[0]]


def _counts_sizes(x: torch.Tensor) -> torch.Tensor:
    return x * len({x.shape[0], x.shape[1]})


def test_keys_of_dictionaries() -> None:
    x, model = torch.tensor([1.0, 3.0, 2.0]), Function(_looks_up_a_value).eval()
    with pytest.raises(fxonnx.CaptureError, match="asks for the value of a tensor"):
        fxonnx.export(model, (x,))
    with pytest.warns(UserWarning, match="example"):
        program = fxonnx.export(model, (x,), data_dependent="example")
    torch.testing.assert_close(program(x + 1)[0], model(x + 1))
    with pytest.raises(fxonnx.CaptureError, match=r"'n', is always 3\n(?s:.*)_looks_up_a_size"):
        fxonnx.export(Function(_looks_up_a_size).eval(), (x,), dynamic_shapes=({0: "n"},))
    with pytest.raises(fxonnx.CaptureError, match=r"unhashable(?s:.*)\nhint: .* convert a size with int\(\.\.\.\)"):
        fxonnx.export(Function(_counts_sizes).eval(), (x[None],), dynamic_shapes=({0: "n", 1: "m"},))


def _slices_in_a_branch(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        x = x[:, -2:]
    return x * 2


def test_branches_return_slices_of_dynamic_tensors() -> None:
    x, model = torch.ones(1, 5, 4), Function(_slices_in_a_branch).eval()
    program = fxonnx.export(model, (x,), dynamic_shapes=({1: "n"},))
    for size, sign in ((5, 1), (3, -1), (4, 1)):
        x = torch.ones(1, size, 4) * sign
        torch.testing.assert_close(program(x)[0], model(x))
