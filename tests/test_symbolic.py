"""User translations: symbolic functions of torch.onnx and onnxscript functions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Optional, TypeVar

import onnx
import onnx_ir as ir
import onnxscript
import pytest
import torch
from onnxscript import BOOL, FLOAT, INT64, opset18, script
from torch import nn
from torch.onnx.symbolic_helper import parse_args

import fxonnx
from fxonnx import ArgumentError, TranslationError

from .functions import Function

FORMAL = partial(onnx.defs.OpSchema.FormalParameter, type_str="tensor(float)")
aten = torch.ops.aten
LIBRARY = torch.library.Library("custom_ops", "DEF")
LIBRARY.define("foo_forward(Tensor input1, Tensor input2, float attr1, int attr2) -> Tensor")
LIBRARY.impl("foo_forward", lambda x, y, a, b: x * a + y * b, "CompositeExplicitAutograd")
LIBRARY.define("two(Tensor x, int[] axes, str? mode=None, bool flag=False) -> (Tensor, Tensor)")
LIBRARY.impl("two", lambda x, axes, mode=None, flag=False: (x.sum(axes), x.amax(axes)), "CompositeExplicitAutograd")


class FooModel(nn.Module):
    def __init__(self, attr1: float, attr2: int) -> None:
        super().__init__()
        self.attr1, self.attr2 = attr1, attr2

    def forward(self, input1: torch.Tensor, input2: torch.Tensor) -> torch.Tensor:
        return torch.ops.custom_ops.foo_forward(input1, input2, self.attr1, self.attr2)


@parse_args("v", "v", "f", "i")
def symbolic_foo_forward(g: Any, input1: Any, input2: Any, attr1: float, attr2: int) -> Any:
    return g.op("Foo", input1, input2, attr1_f=attr1, attr2_i=attr2)


def composed(g: Any, x: Any, y: Any, a: float, b: int) -> Any:
    scale = g.op("Constant", value_t=torch.tensor(a))
    return g.op("Add", g.op("Mul", x, scale), g.op("Mul", y, torch.tensor(float(b))))


X, Y = torch.randn(2, 3), torch.randn(2, 3)


@pytest.fixture
def registered() -> Iterator[None]:
    fxonnx.register_custom_op_symbolic("custom_ops::foo_forward", symbolic_foo_forward, 9)
    yield
    fxonnx.unregister_custom_op_symbolic("custom_ops::foo_forward", 9)


def nodes(program: fxonnx.ONNXProgram) -> list[tuple[str, str]]:
    return [(node.domain, node.op_type) for node in program.model.graph]


@pytest.mark.usefixtures("registered")
def test_registered_symbolic_function() -> None:
    program = fxonnx.torch_onnx_export(FooModel(1.5, 2).eval(), (X, Y), custom_opsets={"custom_domain": 2})
    (node,) = program.model.graph
    assert (node.domain, node.op_type) == ("custom_domain", "Foo")
    assert {name: item.value for name, item in node.attributes.items()} == {"attr1": 1.5, "attr2": 2}
    assert program.model.opset_imports["custom_domain"] == 2
    assert program.model.graph.outputs[0].shape == [2, 3]
    with pytest.raises(fxonnx.UnsupportedOperatorError, match="ONNX has no Foo at opset 20"):
        fxonnx.export(FooModel(1.5, 2).eval(), (X, Y))


@pytest.mark.usefixtures("registered")
def test_the_highest_supported_opset_version_is_selected() -> None:
    fxonnx.register_custom_op_symbolic("custom_ops::foo_forward", composed, 15)
    try:
        program = fxonnx.export(FooModel(1.5, 2).eval(), (X, Y), verify=True)
        assert nodes(program) == [("", "Mul"), ("", "Mul"), ("", "Add")]
        old = fxonnx.torch_onnx_export(FooModel(1.5, 2).eval(), (X, Y), opset_version=13, custom_opsets={"d": 1})
        assert nodes(old) == [("d", "Foo")]
    finally:
        fxonnx.unregister_custom_op_symbolic("custom_ops::foo_forward", 15)


def test_registration_after_install() -> None:
    with fxonnx.installed():
        torch.onnx.register_custom_op_symbolic("custom_ops::foo_forward", composed, 9)
        torch.onnx.export(FooModel(1.5, 2).eval(), (X, Y), dynamo=True, verify=True)
        torch.onnx.unregister_custom_op_symbolic("custom_ops::foo_forward", 9)
    with pytest.raises(fxonnx.UnsupportedOperatorError):
        fxonnx.export(FooModel(1.5, 2).eval(), (X, Y))


def test_invalid_registrations() -> None:
    with pytest.raises(ArgumentError, match="symbolic_name: 'foo' is not the name of an operator"):
        fxonnx.register_custom_op_symbolic("foo", composed, 9)
    with pytest.raises(ArgumentError, match="symbolic_fn: expected a function, got an int"):
        fxonnx.register_custom_op_symbolic("a::b", 3, 9)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="nothing is registered for 'a::b' from opset 9 on"):
        fxonnx.unregister_custom_op_symbolic("a::b", 9)


def test_arguments_are_passed_by_schema_name() -> None:
    def elu(g: Any, alpha: float, self: Any, scale: float, input_scale: float) -> Any:
        assert scale == input_scale == 1
        return g.op("Elu", self, alpha_f=alpha)

    table = {aten.elu.default: elu}
    program = fxonnx.export(nn.ELU(0.5).eval(), (X,), custom_translation_table=table, verify=True)
    assert nodes(program) == [("", "Elu")]


def test_trailing_default_arguments_are_omitted() -> None:
    def elu(g: Any, input: Any, alpha: float, inplace: bool = False) -> Any:
        return g.op("Elu", input, alpha_f=alpha)

    table = {aten.elu.default: elu}
    assert nodes(fxonnx.export(nn.ELU(0.5).eval(), (X,), custom_translation_table=table, verify=True)) == [("", "Elu")]


def test_several_outputs_and_types() -> None:
    seen = []

    def two(g: Any, x: Any, axes: list[int], mode: str | None, flag: bool) -> Any:
        kind = x.type()
        seen.append((kind.sizes(), kind.dim(), kind.dtype(), kind.scalarType(), axes, mode, flag))
        total, most = g.op("my::Two", x, axes_i=axes, outputs=2)
        return total.setType(kind.with_dtype(torch.float64)), most

    model = Function(lambda x: torch.ops.custom_ops.two(x, [1]))
    program = fxonnx.export(
        model.eval(), (X,), custom_translation_table={torch.ops.custom_ops.two.default: two}, dynamic_shapes=({0: "n"},)
    )
    assert nodes(program) == [("my", "Two")]
    assert [value.dtype.name for value in program.model.graph.outputs] == ["FLOAT", "FLOAT"]
    assert seen == [([None, 3], 2, torch.float32, "Float", [1], None, False)]


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda g, x: g.op("Elu", x, alpha=1.0), "the attribute 'alpha' does not end with a type suffix"),
        (lambda g, x: g.op("Elu", x, alpha_f=x), "the attribute 'alpha_f' is computed at run time"),
        (lambda g, x: g.op("Nothing", x), "ONNX has no Nothing at opset 20"),
    ],
)
def test_invalid_symbolic_functions(function: Any, match: str) -> None:
    with pytest.raises(fxonnx.UnsupportedOperatorError, match=match):
        fxonnx.export(Function(torch.abs).eval(), (X,), custom_translation_table={aten.abs.default: function})


class MyElu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, alpha: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.where(x > 0, x, alpha * (x.exp() - 1))

    @staticmethod
    def symbolic(g: Any, x: Any, alpha: float) -> Any:
        return g.op("Elu", x, alpha_f=alpha)


class Halves(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.clone(), x + y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def symbolic(g: Any, x: Any, y: Any) -> Any:
        return g.op("Identity", x), g.op("custom::Sum", x, y, weight_f=1.5)


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.relu()


def test_autograd_functions_with_a_symbolic_method() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return MyElu.apply(MyElu.apply(x, 0.5).sin(), 2.0) + Plain.apply(x)

    before = torch.autograd.Function.apply
    program = fxonnx.export(Model().eval(), (X,), dynamic_shapes=({0: "n"},), verify="auto")
    assert torch.autograd.Function.apply == before
    assert [name for _, name in nodes(program)] == ["Elu", "Sin", "Elu", "Relu", "Add"]
    assert program.model.graph.outputs[0].shape == ["n", 3]
    assert program(torch.randn(5, 3))[0].shape == (5, 3)
    called = [str(node.target) for node in program.exported_program.graph.nodes if node.op == "call_function"]
    # The computation of the functions is not traced in addition.
    assert "aten.where.self" not in called


def test_autograd_functions_with_several_outputs() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return Halves.apply(x, y)

    program = fxonnx.export(Model().eval(), (X, Y))
    assert ("custom", "Sum") in nodes(program)
    assert program.model.opset_imports["custom"] == 1
    with pytest.raises(RuntimeError, match="Halves can only run through the ONNXProgram"):
        program.exported_program.module()(X, Y)


def test_onnxscript_functions() -> None:
    def gelu(self: FLOAT, approximate: str = "none") -> Any:
        return opset18.Mul(opset18.Sigmoid(self), opset18.Max(self, -3.0))

    def topk(self: FLOAT, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        values, places = opset18.TopK(self, [k], axis=dim)
        return values, places

    program = fxonnx.export(nn.GELU().eval(), (X,), custom_translation_table={aten.gelu.default: gelu})
    assert [name for _, name in nodes(program)] == ["Sigmoid", "Max", "Mul"]
    torch.testing.assert_close(program(X)[0], X.sigmoid() * X.clamp_min(-3))

    def clamped(self: FLOAT, min: float | None = None, max: float | None = None) -> Any:
        return -(-self * 2.0 / 2) + opset18.Where(self > 1.0, 1.0 - self, 0 * self)

    fxonnx.export(
        Function(lambda x: x.clamp(max=1.0)).eval(),
        (X * 3,),
        custom_translation_table={aten.clamp.default: clamped},
        verify=True,
    )
    model = Function(lambda x: torch.topk(x, 2))
    fxonnx.export(model.eval(), (X,), custom_translation_table={aten.topk.default: topk}, verify=True)


def test_arithmetic_with_results_of_onnxscript_functions() -> None:
    custom = onnxscript.values.Opset("my.domain", 1)
    twice = onnx.defs.OpSchema("Twice", "my.domain", 1, outputs=[FORMAL("y")], inputs=[FORMAL("x")])

    def doubled(self: FLOAT) -> Any:
        return opset18.Abs(self) * 2.0 - opset18.Relu(self) + opset18.Neg(self)

    def foreign(self: FLOAT) -> Any:
        return onnxscript.values.Op(custom, "Twice", twice)(self) + 1.0

    program = fxonnx.export(Function(torch.abs).eval(), (X,), custom_translation_table={aten.abs.default: doubled})
    torch.testing.assert_close(program(X)[0], X.abs() * 2 - X.relu() - X)
    program = fxonnx.export(Function(torch.abs).eval(), (X,), custom_translation_table={aten.abs.default: foreign})
    assert nodes(program) == [("my.domain", "Twice"), ("", "Add")]


def test_tensors_as_attributes() -> None:
    def table(g: Any, x: Any) -> Any:
        return g.op("my::Table", x, values_t=torch.tensor([1.0, 2.0]), names_s=["a", "b"])

    program = fxonnx.export(Function(torch.abs).eval(), (X,), custom_translation_table={aten.abs.default: table})
    (node,) = program.model_proto.graph.node
    attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    assert onnx.numpy_helper.to_array(attributes["values"]).tolist() == [1.0, 2.0]
    assert attributes["names"] == [b"a", b"b"]


def test_the_first_translation_that_accepts_the_element_types_is_selected() -> None:
    @script()
    def of_ints(x: INT64) -> INT64:
        return opset18.Max(x, opset18.Neg(x))

    @script()
    def of_floats(x: FLOAT) -> FLOAT:
        return opset18.Sqrt(opset18.Mul(x, x))

    table = {aten.abs.default: [of_ints, of_floats]}
    for x, operator in ((torch.tensor([1, -2]), "Max"), (torch.tensor([1.0, -2.0]), "Sqrt")):
        program = fxonnx.export(Function(torch.abs).eval(), (x,), custom_translation_table=table, verify=True)
        assert operator in [name for _, name in nodes(program)]
    with pytest.raises(fxonnx.UnsupportedOperatorError, match="none of the 2 functions accepts these element types"):
        fxonnx.export(Function(torch.abs).eval(), (X.half(),), custom_translation_table=table)


T = TypeVar("T", FLOAT, INT64)


class Sum(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def add_bools(self: BOOL, other: BOOL, alpha: float = 1.0) -> BOOL:
    return opset18.Or(self, other)


def add_numbers(self: FLOAT | Optional[INT64[...]], other: T, alpha: float = 1.0):  # noqa: UP045
    return opset18.Sum(self, other) if self.dtype == ir.DataType.FLOAT else opset18.Add(self, other)


def add_anything(self, other, alpha=1.0):
    return opset18.Sub(self, opset18.Neg(other))


@pytest.mark.parametrize(
    ("x", "operator"),
    [
        (torch.tensor([True, False]), "Or"),
        (torch.tensor([1.0, 2.0]), "Sum"),
        (torch.tensor([1, 2]), "Add"),
        (torch.tensor([1.0, 2.0], dtype=torch.float64), "Sub"),
    ],
)
def test_python_functions_are_selected_by_their_annotations(x: torch.Tensor, operator: str) -> None:
    table = {aten.add.Tensor: [add_bools, add_numbers, add_anything]}
    program = fxonnx.export(Sum().eval(), (x, x.flip(0)), custom_translation_table=table, verify=True)
    assert [name for _, name in nodes(program) if name not in ("Neg", "Identity")] == [operator]
    wrong = {aten.add.Tensor: [add_bools, add_bools]}
    if operator != "Or":
        with pytest.raises(
            fxonnx.UnsupportedOperatorError, match="none of the 2 functions accepts these element types"
        ):
            fxonnx.export(Sum().eval(), (x, x), custom_translation_table=wrong)


def test_functions_for_complex_tensors() -> None:
    def of_real(op: Any, x: Any) -> Any:
        return op.Sqrt(op.Mul(x, x))

    def of_complex(op: Any, x: Any) -> Any:
        return op.Sqrt(op.ReduceSum(op.Mul(x, x), [-1], keepdims=0))

    of_complex.complex = True  # type: ignore[attr-defined]
    table = {aten.abs.default: [of_complex, of_real]}
    for x in (X, torch.complex(X, Y)):
        program = fxonnx.export(Function(torch.abs).eval(), (x,), custom_translation_table=table, verify=True)
        assert ("", "Sqrt") in nodes(program)
        assert (("", "ReduceSum") in nodes(program)) == x.is_complex()


def test_failing_translation_function() -> None:
    def wrong(g: Any, x: Any) -> Any:
        return g.op("Relu", x).nothing

    with pytest.raises(TranslationError, match="'SymbolicValue' object has no attribute 'nothing'"):
        fxonnx.export(Function(torch.abs).eval(), (X,), custom_translation_table={aten.abs.default: wrong})


def test_symbolic_functions_that_call_those_of_torch_onnx() -> None:
    from torch.onnx import symbolic_helper, symbolic_opset9

    class Masked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x.masked_fill(mask, torch.finfo(x.dtype).min).softmax(-1).masked_fill(mask, 0)

        @staticmethod
        def symbolic(g: Any, x: Any, mask: Any) -> Any:
            assert symbolic_helper._is_tensor(x)
            assert not symbolic_helper._is_constant(x)
            lowest = g.op("Constant", value_t=torch.tensor(torch.finfo(x.type().dtype()).min))
            output = symbolic_opset9.masked_fill(g, x, mask, lowest)
            output = symbolic_opset9.softmax(g, output, -1)
            return symbolic_opset9.masked_fill(
                g, output, mask, g.op("Constant", value_t=torch.tensor(0, dtype=torch.bool))
            )

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = Masked.apply(x, x > 0.5)
            return result

    program = fxonnx.export(Model().eval(), (X,), dynamic_shapes=({0: "n"},), verify=True)
    assert [op_type for _, op_type in nodes(program)] == ["Greater", "Where", "Softmax", "Where"]
