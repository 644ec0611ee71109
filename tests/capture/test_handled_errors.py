"""Models that handle errors: the fallback for an error that only the capture raises is never exported."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fxonnx
from fxonnx import CaptureError
from tests.functions import Function

X = torch.arange(6.0).reshape(3, 2) + 1
INPUTS = (X, -X, X - 3.5, X * 0)


def increment(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def fails(x: Tensor) -> Tensor:
    raise ValueError("negative")


@contextlib.contextmanager
def ignored_by_a_generator() -> Iterator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001
        traceback.format_exc()


@contextlib.contextmanager
def timed() -> Iterator[None]:
    try:
        yield
    finally:
        str(1)


class Ignored(contextlib.ContextDecorator):
    """A context manager that suppresses all errors."""

    def __enter__(self) -> Ignored:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return True


def except_runtime_error(x: Tensor) -> Tensor:
    try:
        if x.sum() > 0:  # noqa: SIM108
            y = x + 1
        else:
            y = x - 1
    except RuntimeError:
        y = x * 100
    return y


def bare_except(x: Tensor) -> Tensor:
    try:
        y = increment(x)
    except:  # noqa: E722
        y = x * 100
    return y


def except_base_exception(x: Tensor) -> Tensor:
    flag = True
    try:
        flag = bool((x > 0).all())
    except BaseException:  # noqa: BLE001
        flag = False
    return x + 1 if flag else x * 100


def error_kept_for_later(x: Tensor) -> Tensor:
    failure = None
    try:
        y = increment(x)
    except Exception as error:  # noqa: BLE001
        failure = error
    return y if failure is None else x * 100


def traceback_removed(x: Tensor) -> Tensor:
    try:
        y = increment(x)
    except RuntimeError as error:
        error.__traceback__ = None
        y = x * 100
    return y


def raised_as_another_error(x: Tensor) -> Tensor:
    try:
        try:
            y = increment(x)
        except RuntimeError as error:
            raise ValueError("no value") from error
    except ValueError:
        y = x * 100
    return y


def failing_fallback(x: Tensor) -> Tensor:
    try:
        y = increment(x)
    except RuntimeError:
        y = None
    return y + 0  # type: ignore[operator]


def suppressed(x: Tensor) -> Tensor:
    y = x
    with contextlib.suppress(RuntimeError):
        if x.sum() > 0:
            y = x + 1
    return y


def suppressed_by_a_stack(x: Tensor) -> Tensor:
    y = x
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(Exception))
        if x.sum() > 0:
            y = x + 1
    return y


def suppressed_by_a_generator(x: Tensor) -> Tensor:
    y = x
    with ignored_by_a_generator():
        if x.sum() > 0:
            y = x + 1
    return y


def suppressed_by_a_class(x: Tensor) -> Tensor:
    y = x
    with Ignored():
        if x.sum() > 0:
            y = x + 1
    return y


def suppressed_by_a_decorator(x: Tensor) -> Tensor:
    y = Ignored()(increment)(x)
    return x * 100 if y is None else y


def constant_condition(x: Tensor) -> Tensor:
    try:
        return x + 1 if torch.ones(3).sum() > 2 else x - 1
    except RuntimeError:
        return x * 100


def loop_over_a_count(x: Tensor) -> Tensor:
    y = x
    try:
        for step in range((x > 0).sum().item()):  # type: ignore[arg-type]
            y = y + step
    except Exception:  # noqa: BLE001
        y = x * 100
    return y


def raised_in_eager_mode_as_well(x: Tensor) -> Tensor:
    try:
        y = x @ torch.ones(7, 7)
    except RuntimeError:
        y = x + 1
    return y


def missing_module(x: Tensor) -> Tensor:
    try:
        import a_module_that_is_not_there  # type: ignore[import-not-found]

        y = a_module_that_is_not_there.compute(x)
    except ImportError:
        y = x + 1
    return y


def missing_attribute(x: Tensor) -> Tensor:
    try:
        y = x.number_of_items  # type: ignore[attr-defined]
    except AttributeError:
        y = x + 1
    return y


def missing_key(x: Tensor) -> Tensor:
    table: dict[str, Tensor] = {}
    try:
        y = table["bias"]
    except KeyError:
        table["bias"] = y = torch.ones(2)
    return x + y


def check_in_a_harmless_context(x: Tensor) -> Tensor:
    with timed(), torch.no_grad(), contextlib.nullcontext():
        if (x > 1e9).any():
            raise ValueError("too large")
        return x + 1


CAPTURED = (
    *(except_runtime_error, bare_except, except_base_exception, error_kept_for_later),
    *(raised_as_another_error, failing_fallback, suppressed, suppressed_by_a_stack, suppressed_by_a_generator),
    *(suppressed_by_a_class, suppressed_by_a_decorator, constant_condition, loop_over_a_count),
    *(raised_in_eager_mode_as_well, missing_module, missing_attribute, missing_key, check_in_a_harmless_context),
)


@pytest.mark.parametrize("function", CAPTURED, ids=lambda function: function.__name__)
def test_the_program_computes_what_the_model_does(function: Callable[[Tensor], Tensor]) -> None:
    model = Function(function).eval()
    program = fxonnx.export(model, (X,))
    for x in INPUTS:
        torch.testing.assert_close(program(x)[0], model(x))


def test_the_example_decides_a_handled_question_on_request() -> None:
    def indexed(x: Tensor) -> Tensor:
        try:
            return [x, x + 1][int(x.sum()) % 2]
        except RuntimeError:
            return x * 100

    with pytest.warns(UserWarning, match="the model branches on the values of its inputs"):
        program = fxonnx.export(Function(indexed).eval(), (X,), data_dependent="example")
    torch.testing.assert_close(program(X)[0], indexed(X))


ASKING: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: len("a" * int(x.sum().item())),
    "float": lambda x: len("a" * int(float(x.sum()))),
    "index of a list": lambda x: [1, 2, 3][(x > 0).sum().item() % 3],  # type: ignore[index]
    "tolist": lambda x: sum(value for row in x.tolist() for value in row if value > 0),
    "set of bools": lambda x: len({bool(value) for value in (x > 0).flatten()}),
    "hash": lambda x: len({hash(x.sum().item()), 1}),
}


@pytest.mark.parametrize("name", ASKING)
@pytest.mark.parametrize("handler", ["except", "suppress", "finally"])
def test_questions_that_are_handled_are_reported_with_their_line(name: str, handler: str) -> None:
    def handled(x: Tensor) -> Tensor:
        try:
            return x * ASKING[name](x)
        except Exception:  # noqa: BLE001
            return x * 100

    def suppressing(x: Tensor) -> Tensor:
        value = 100
        with contextlib.suppress(RuntimeError):
            value = ASKING[name](x)
        return x * value

    def jumping(x: Tensor) -> Tensor:
        value = 100
        try:
            value = ASKING[name](x)
        finally:
            return x * value  # noqa: B012

    function = {"except": handled, "suppress": suppressing, "finally": jumping}[handler]
    message = r"the model asks for the value of a tensor(?s:.*)at: (\S*)test_handled_errors\.py:\d+ in "
    with pytest.raises(CaptureError, match=message):
        fxonnx.export(Function(function).eval(), (X,))


def saved(x: Tensor) -> bool:
    torch.save(x, io.BytesIO())
    return True


FAKE: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "numpy": (lambda x: x.numpy(), r"\.numpy\(\) is not supported"),
    "asarray": (np.asarray, r"\.numpy\(\) is not supported"),
    "from_numpy": (lambda x: torch.from_numpy(x.numpy()), r"\.numpy\(\) is not supported"),
    "data_ptr": (lambda x: x.data_ptr(), "Cannot access data pointer"),
    "address of the storage": (lambda x: x.untyped_storage().data_ptr(), "Cannot access data pointer"),
    "deepcopy": (copy.deepcopy, "Cannot access data pointer"),
    "dlpack": (torch.from_dlpack, "Cannot access data pointer"),
    "pickle": (pickle.dumps, "tensors cannot be pickled"),
    "save": (saved, "tensors cannot be pickled"),
    "format": (lambda x: f"{x.sum().item():.0f}", "unsupported format string"),
}


@pytest.mark.parametrize("name", FAKE)
@pytest.mark.parametrize("in_handler", [True, False])
def test_errors_of_tensors_without_memory_are_reported(name: str, in_handler: bool) -> None:
    read, message = FAKE[name]

    def forward(x: Tensor) -> Tensor:
        works = True
        try:
            read(x)
        except Exception:  # noqa: BLE001
            if in_handler:
                return x * 100
            works = False
        return x + 1 if works else x * 100

    message = f"handles an error that only the capture raises(?s:.*){message}(?s:.*)test_handled_errors.py"
    with pytest.raises(CaptureError, match=message):
        fxonnx.export(Function(forward).eval(), (X,))


def number_of_rows(x: Tensor) -> int:
    try:
        return len(x.numpy())
    except RuntimeError:
        return x.shape[0]


def test_a_fallback_with_the_same_result_is_exported() -> None:
    model = Function(lambda x: x * number_of_rows(x)).eval()
    program = fxonnx.export(model, (X,), dynamic_shapes=({0: "n"},))
    proof = program.record.proof
    assert [(one.kind.value, one.detail) for one in proof.departures] == [
        ("Python introspection", "handled RuntimeError")
    ]
    assert "in number_of_rows: return len(x.numpy())" in proof.departures[0].line
    # The numbers of this file may be sizes at which the fallback differs.
    assert {"example", "negated", "zeros", "n = 1"} < {run.inputs for run in proof.runs if run.status == "equal"}
    torch.testing.assert_close(program(torch.ones(5, 2))[0], torch.full((5, 2), 5.0))


def is_eager_at_seventeen_rows(x: Tensor) -> Tensor:
    try:
        x.numpy()
        return x * {17: 2}.get(x.shape[0], 1)
    except RuntimeError:
        return x * 1


def test_a_fallback_that_differs_at_a_size_of_the_file_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"error that only the capture raises, and takes its fallback: RuntimeError"):
        fxonnx.export(Function(is_eager_at_seventeen_rows).eval(), (X,), dynamic_shapes=({0: "n"},))


def fails_in_eager_mode(x: Tensor) -> Tensor:
    try:
        x.numpy()
    except RuntimeError:
        return x * 2
    raise ValueError("on purpose")


def test_a_fallback_that_no_run_confirms_is_refused() -> None:
    message = r"takes its fallback: RuntimeError\n(?s:.*)not compared with the model at the example: "
    own = r"the model itself fails on the example inputs: ValueError\n  on purpose\n  at: .*raise ValueError\(\"on purpose\"\)"
    with pytest.raises(CaptureError, match=own):
        fxonnx.export(Function(fails_in_eager_mode).eval(), (X,))
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), Function(lambda x: x * number_of_rows(x)))
    with pytest.raises(CaptureError, match=f"{message}the weights or inputs have no values\nhint: "):
        fxonnx.export(model.eval(), (X,))


def check_in_suppress(x: Tensor) -> Tensor:
    y = x
    with contextlib.suppress(ValueError):
        if (x < 0).any():
            raise ValueError("negative")
        y = x + 1
    return y


def check_in_a_generator(x: Tensor) -> Tensor:
    y = x
    with ignored_by_a_generator():
        if (x < 0).any():
            raise ValueError("negative")
        y = x + 1
    return y  # noqa: RET504


def check_in_a_class(x: Tensor) -> Tensor:
    y = x
    with Ignored():
        assert (x >= 0).all()
        y = x + 1
    return y  # noqa: RET504


def check_before_finally(x: Tensor) -> Tensor:
    y = x
    try:
        if (x < 0).any():
            raise ValueError("negative")
        y = x + 1
    finally:
        return y  # noqa: B012


@pytest.mark.parametrize("function", [check_in_suppress, check_in_a_generator, check_in_a_class, check_before_finally])
def test_checks_whose_errors_are_handled_are_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(CaptureError, match=f"the model asks for the value of a tensor(?s:.*)in {function.__name__}"):
        fxonnx.export(Function(function).eval(), (X,))


def branch_raises(x: Tensor) -> Tensor:
    try:
        if x.sum() > 0:  # noqa: SIM108
            y = fails(x)
        else:
            y = x + 1
    except ValueError:
        y = x * 100
    return y


def loop_raises(x: Tensor) -> Tensor:
    y = x
    with contextlib.suppress(ValueError):
        while y.sum() < 50:
            y = fails(y * 2)
    return y


@pytest.mark.parametrize("function", [branch_raises, loop_raises])
def test_errors_of_branches_that_are_handled_are_refused(function: Callable[[Tensor], Tensor]) -> None:
    message = r"handles an error of a branch or loop on the value of a tensor: ValueError(?s:.*)raise ValueError"
    with pytest.raises(CaptureError, match=message):
        fxonnx.export(Function(function).eval(), (X,))


def test_an_error_without_its_traceback_is_reported() -> None:
    with pytest.raises(CaptureError, match="the model asks for the value of a tensor"):
        fxonnx.export(Function(traceback_removed).eval(), (X,))


class WritesAfterHandledError(nn.Module):
    """Writes to a buffer and a parameter after an error that the model handles in eager torch as well."""

    def __init__(self) -> None:
        super().__init__()
        self.total = nn.Buffer(torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = x.view(7)
        except RuntimeError:
            x = x * 2
        self.total.add_(1)
        self.weight.add_(1)
        return x + self.total + self.weight


@pytest.mark.filterwarnings("ignore:forward writes to")
def test_the_check_of_handled_errors_leaves_the_model_as_it_was() -> None:
    model, x = WritesAfterHandledError().eval(), torch.randn(2, 3)
    program = fxonnx.export(model, (x,))
    assert torch.equal(model.total, torch.zeros(3))
    assert torch.equal(model.weight, torch.ones(3))
    torch.testing.assert_close(program(x)[0], model(x))


class Tolerant(nn.Module):
    """A module that calls its parts with lengths, and those without them again."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2)])

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            try:
                x = part(x, lengths=None)
            except TypeError:  # noqa: PERF203 - as speechbrain does
                x = part(x)
        return x


def test_an_error_of_a_part_that_the_model_handles_leaves_no_module_on_the_stack() -> None:
    model = Tolerant().eval()
    program = fxonnx.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: "n"},))
    x = torch.randn(5, 4)
    torch.testing.assert_close(program(x)[0], model(x))
