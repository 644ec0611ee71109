"""ONNXProgram: calls, the ONNX Runtime session, properties and repr."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch

from fxonnx import ArgumentError, ONNXProgram, RuntimeSessionError, SaveError
from fxonnx._program import session
from fxonnx._program.call_binding import bind_call
from fxonnx_translations._builder.initializers import TorchTensor

from .handmade import initializer, linear_model, program


class Many(torch.nn.Module):
    """A module with tensors, containers and constants as positional and keyword arguments."""

    def forward(
        self,
        x: torch.Tensor,
        number: int,
        pair: tuple[torch.Tensor, torch.Tensor],
        *,
        table: dict[str, torch.Tensor],
        flag: bool = True,
        nothing: None = None,
        y: torch.Tensor,
    ) -> torch.Tensor:
        return x * number + pair[0] + pair[1] + table["a"] + table["b"] + y


def tensors(count: int) -> list[torch.Tensor]:
    return [torch.full((2,), float(index)) for index in range(count)]


@pytest.fixture(scope="module")
def many() -> ONNXProgram:
    """Create a program that returns its negated tensor inputs in graph order: x, pair, y, table."""
    x, p, q, y, a, b = tensors(6)
    kwargs = {"y": y, "flag": False, "nothing": None, "table": {"a": a, "b": b}}
    return program(Many(), (x, 3, (p, q)), kwargs, operators=[("Neg", index) for index in range(6)])


def expect(outputs: tuple[torch.Tensor, ...], inputs: list[torch.Tensor]) -> None:
    assert [output.tolist() for output in outputs] == [(-value).tolist() for value in inputs]


def test_arguments_are_bound_by_position_and_name(many: ONNXProgram) -> None:
    x, p, q, y, a, b = values = tensors(6)
    expect(many(x, 3, (p, q), y=y, flag=False, nothing=None, table={"a": a, "b": b}), values)
    expect(many(x, 3, (p, q), table={"b": b, "a": a}, nothing=None, flag=False, y=y), values)
    expect(many(table={"a": a, "b": b}, y=y, pair=(p, q), number=3, x=x, flag=False, nothing=None), values)
    # Constants may be omitted.
    expect(many(x, pair=(p, q), y=y, table={"a": a, "b": b}), values)


def test_bound_calls_have_the_structure_of_the_example_inputs(many: ONNXProgram) -> None:
    x, p, q, y, a, b = tensors(6)
    call = bind_call(many.exported_program, (), {"table": {"a": a, "b": b}, "y": y, "pair": (p, q), "x": x})
    assert [type(value).__name__ for value in call.args] == ["Tensor", "int", "tuple"]
    assert list(call.kwargs) == ["y", "flag", "nothing", "table"]
    assert (call.kwargs["flag"], call.kwargs["nothing"]) == (False, None)
    many.exported_program.module()(*call.args, **call.kwargs)


X, P, Q, Y, A, B = tensors(6)
GOOD: dict[str, Any] = {"x": X, "number": 3, "pair": (P, Q), "y": Y, "flag": False, "table": {"a": A, "b": B}}


@pytest.mark.parametrize(
    ("args", "changes", "message"),
    [
        ((), {"z": X}, "z: unknown argument\nhint: the exported arguments are: x, number, pair, y, flag, "),
        ((), {"y": None}, "y: expected a tensor, got NoneType"),
        ((X,), {}, "x: argument given both by position and by name"),
        ((X, 3, (P, Q), Y), {}, "x: argument given both by position and by name"),
        ((X, 3, (P, Q), *[None] * 9), {}, "args: got 12 positional arguments, but the model was exported with 3"),
        ((), {"pair": (P,)}, "pair: the structure differs from the exported one"),
        ((), {"table": {"a": A, "c": B}}, "table: the structure differs from the exported one: .*missing key.*'b'"),
        ((), {"number": 4}, "number: got 4, but the model was exported with the constant 3\nhint: re-export"),
        ((), {"number": 3.0}, "number: got 3.0, but the model was exported with the constant 3"),
        ((), {"flag": 0}, "flag: got 0, but the model was exported with the constant False"),
        ((), {"nothing": X}, "nothing: got a Tensor, but the model was exported with the constant None"),
        ((), {"x": X.double()}, "x: expected dtype torch.float32, got torch.float64"),
        ((), {"x": 1.0}, r"x: expected shape \[2\], got \[\]"),
        ((), {"x": 1}, "x: expected dtype torch.float32, got torch.int64"),
        ((), {"x": torch.ones(3)}, r"x: expected shape \[2\], got \[3\]"),
        ((), {"x": torch.ones(1, 2)}, r"x: expected shape \[2\], got \[1, 2\]"),
        ((), {"x": [1.0]}, "x: expected a tensor, got list"),
    ],
)
def test_invalid_arguments(many: ONNXProgram, args: tuple[Any, ...], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        many(*args, **{**GOOD, **changes})


@pytest.mark.parametrize("name", ["x", "pair", "y", "table"])
def test_missing_argument(many: ONNXProgram, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: missing argument\nhint: the exported arguments are: x, "):
        many(**{key: value for key, value in GOOD.items() if key != name})


class Same(torch.nn.Module):
    """Identity through an operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.complex64,
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 2)], ids=str)
def test_every_dtype_as_input_and_output(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = (torch.arange(6)[: max(1, len(shape)) * 6].reshape(2, 3) if shape == (2, 3) else torch.ones(shape)).to(dtype)
    (output,) = program(Same(), (x,), operators=[("Identity", 0)])(x)
    expected = torch.view_as_real(x) if dtype.is_complex else x
    assert output.dtype == expected.dtype
    assert output.shape == expected.shape
    assert torch.equal(output.float(), expected.float())


def test_inputs_may_be_strided_conjugated_or_require_grad() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    identity = program(Same(), (x,), operators=[("Identity", 0)])
    assert torch.equal(identity(torch.arange(6.0).reshape(3, 2).t())[0], torch.arange(6.0).reshape(3, 2).t())
    assert torch.equal(identity(x.clone().requires_grad_())[0], x)
    z = torch.complex(x, x)
    (output,) = program(Same(), (z,), operators=[("Identity", 0)])(z.conj())
    assert torch.equal(torch.view_as_complex(output), z.conj().resolve_conj())


def test_a_python_int_is_a_dynamic_scalar() -> None:
    class Times(torch.nn.Module):
        def forward(self, x: torch.Tensor, number: int) -> torch.Tensor:
            return x * number

    times = program(
        Times(),
        (torch.ones(2), 3),
        operators=[("Neg", 1)],
        dynamic_shapes={"x": None, "number": torch.export.Dim.DYNAMIC},
    )
    assert times(torch.ones(2), 7)[0].item() == -7


def test_outputs_outlive_the_session() -> None:
    x = torch.arange(1000.0)
    doubled = program(Same(), (x,), operators=[("Add", 0)])
    (output,) = doubled(x)
    doubled.release()
    del doubled
    assert torch.equal(output, x + x)


def test_session_is_kept_until_released() -> None:
    x = torch.ones(2)
    identity = program(Same(), (x,), operators=[("Add", 0)])
    assert identity(x)[0].tolist() == [2, 2]
    (node,) = identity.model.graph
    node.op_type = "Mul"
    assert identity(x)[0].tolist() == [2, 2]
    identity.release()
    assert identity(x)[0].tolist() == [1, 1]


def test_large_models_are_loaded_from_a_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SINGLE_FILE_BYTES", 100)
    running = session.Session(linear_model())
    assert running._directory is not None
    (output,) = running.run([torch.ones(2, 40)])
    running.close()
    assert running._directory is None
    assert torch.equal(output, session.Session(linear_model()).run([torch.ones(2, 40)])[0])


def test_model_that_onnx_runtime_cannot_load() -> None:
    broken = program(Same(), (torch.ones(2),), operators=[("NoSuchOperator", 0)])
    with pytest.raises(RuntimeSessionError, match=r"ONNX Runtime cannot load the model: .*NoSuchOperator"):
        broken(torch.ones(2))


def test_model_that_onnx_runtime_cannot_run() -> None:
    model = linear_model()
    # The batch size is dynamic, so the invalid Reshape fails only at run time.
    model.graph.initializers["target"].const_value = ir.tensor([2, 1, 30], name="target")
    with pytest.raises(RuntimeSessionError, match=r"ONNX Runtime cannot run the model: .*reshape"):
        session.Session(model).run([torch.ones(3, 40)])


def test_wrong_number_of_graph_inputs() -> None:
    with pytest.raises(ArgumentError, match="args: the model has 1 inputs, got 2 values"):
        session.Session(linear_model()).run([torch.ones(2, 40), torch.ones(2)])


def test_graph_input_without_dtype(many: ONNXProgram) -> None:
    (x,) = session.Session(linear_model())._inputs
    x.type = None
    with pytest.raises(ArgumentError, match="x: this graph input has no dtype"):
        session.as_tensor(torch.ones(1), x)


def test_model_proto_is_a_copy(many: ONNXProgram) -> None:
    assert many.model_proto == many.model_proto
    assert many.model_proto is not many.model_proto
    onnx.checker.check_model(ONNXProgram(linear_model(), many.record).model_proto, full_check=True)


def test_model_proto_of_a_huge_model() -> None:
    huge = program(Same(), (torch.ones(2),), operators=[("Neg", 0)])
    huge.model.graph.register_initializer(
        initializer("huge", TorchTensor(torch.empty(2**29 + 1, device="meta"), name="huge"))
    )
    with pytest.raises(SaveError, match=r"2\.0 GiB of weights.*\nhint: use program\.save"):
        _ = huge.model_proto
    assert "2.0 GiB of weights" in repr(huge)


def test_save_writes_the_current_model(many: ONNXProgram) -> None:
    buffer = io.BytesIO()
    many.save(buffer)
    assert onnx.load_from_string(buffer.getvalue()) == many.model_proto


def test_timings_and_example_inputs(many: ONNXProgram) -> None:
    assert dict(many.record.timings) == {"capture": 0.5}
    assert many.record.example_inputs is many.exported_program.example_inputs


def test_repr(many: ONNXProgram) -> None:
    shown = ONNXProgram(linear_model(), many.record)
    assert repr(shown) == (
        "ONNXProgram(opset 20, 3 nodes, 3 initializers, 4.8 KiB of weights,\n"
        "  inputs:  x: float[batch, 40]\n"
        "  outputs: y: float[batch, 1, 30])"
    )
    shown.model.graph.outputs[0].shape = None
    assert "outputs: y: float)" in repr(shown)


def test_onnxruntime_is_imported_lazily() -> None:
    code = "import sys; from fxonnx._program import ONNXProgram; sys.exit('onnxruntime' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
