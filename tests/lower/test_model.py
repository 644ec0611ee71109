"""Header, names, metadata, inputs and outputs of the model, errors, and determinism."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import fxonnx
from fxonnx.errors import UnsupportedOperatorError

INPUT = "pkg.torch.export.graph_signature.InputSpec."
OUTPUT = "pkg.torch.export.graph_signature.OutputSpec."
ORIGINAL = "pkg.torch.onnx.original_node_name"
aten = torch.ops.aten


class SimpleAddModel(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.add(x, y)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(3, 4)
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("secret", torch.full((4,), 2.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc1(x) * self.scale + self.secret + torch.tensor([1.0, 2.0, 3.0, 4.0])


def outputs_of(function: Any, *args: Any, **options: Any) -> fxonnx.ONNXProgram:
    class Model(nn.Module):
        def forward(self, *inputs: Any) -> Any:
            return function(*inputs)

    return fxonnx.export(Model(), args, **options)


def test_node_metadata_has_the_documented_keys() -> None:
    program = fxonnx.export(SimpleAddModel(), (torch.ones(2), torch.ones(2)))
    (node,) = program.model.graph
    name = f"{SimpleAddModel.__module__}.{SimpleAddModel.__qualname__}"
    assert node.name == "node_add"
    assert node.metadata_props["namespace"] == f": {name}/add: aten.add.Tensor"
    assert node.metadata_props["pkg.torch.onnx.class_hierarchy"] == repr([name, "aten.add.Tensor"])
    assert node.metadata_props["pkg.torch.onnx.name_scopes"] == repr(["", "add"])
    assert node.metadata_props["pkg.torch.onnx.fx_node"] == (
        "%add : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%x, %y), kwargs = {})"
    )
    assert "return torch.add(x, y)" in node.metadata_props["pkg.torch.onnx.stack_trace"]


def test_helper_nodes_have_the_metadata_of_their_fx_node() -> None:
    program = outputs_of(torch.log2, torch.ones(2))
    assert [node.op_type for node in program.model.graph] == ["Cast", "Log", "Mul", "Cast"]
    assert len({tuple(node.metadata_props.items()) for node in program.model.graph}) == 1


def test_header_and_graph_metadata() -> None:
    program = fxonnx.export(Nested(), (torch.ones(2, 3),), dynamic_shapes=({0: "rows"},))
    model = program.model
    assert (model.producer_name, model.producer_version) == ("pytorch", torch.__version__)
    assert (model.graph.name, model.ir_version, model.graph.opset_imports) == ("main_graph", 10, {"": 20})
    signature = model.graph.metadata_props["pkg.torch.export.ExportedProgram.graph_signature"]
    assert "PARAMETER target='fc1.weight'" in signature
    assert "VR[" in model.graph.metadata_props["pkg.torch.export.ExportedProgram.range_constraints"]


@pytest.mark.parametrize(("opset", "ir_version"), [(11, 6), (17, 8), (20, 10), (23, 11), (26, 13)])
def test_ir_version_follows_the_opset(opset: int, ir_version: int) -> None:
    program = fxonnx.export(SimpleAddModel(), (torch.ones(2), torch.ones(2)), opset_version=opset)
    assert program.model.ir_version == ir_version
    assert program.model.graph.opset_imports[""] == opset


def test_initializers_have_state_dict_names_and_share_memory() -> None:
    model = Nested()
    program = fxonnx.export(model, (torch.ones(2, 3),))
    values = program.model.graph.initializers
    assert {"fc1.weight", "fc1.bias", "scale", "secret"} <= set(values)
    assert values["fc1.weight"].const_value.raw.data_ptr() == model.fc1.weight.data_ptr()
    assert values["fc1.weight"].metadata_props == {
        INPUT + "kind": "PARAMETER",
        INPUT + "persistent": "None",
        ORIGINAL: "p_fc1_weight",
    }
    assert values["scale"].metadata_props[INPUT + "persistent"] == "True"
    assert values["secret"].metadata_props[INPUT + "persistent"] == "False"


def test_tied_weights_are_stored_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(x))

    program = fxonnx.export(Tied(), (torch.zeros(2, 3, dtype=torch.int64),), verify=True)
    large = [value.name for value in program.model.graph.initializers.values() if value.const_value.size >= 40]
    assert large in (["embed.weight"], ["head.weight"])


def test_inputs_and_outputs_have_kind_and_original_name() -> None:
    args = (torch.ones(2, 3),)
    program = fxonnx.export(Nested(), args, input_names=["features"], output_names=["scores"])
    (given,), (result,) = program.model.graph.inputs, program.model.graph.outputs
    assert (given.name, result.name) == ("features", "scores")
    assert given.metadata_props == {INPUT + "kind": "USER_INPUT", INPUT + "persistent": "None", ORIGINAL: "x"}
    assert result.metadata_props[OUTPUT + "kind"] == "USER_OUTPUT"
    assert result.metadata_props[ORIGINAL].startswith("add")


def test_further_input_names_rename_the_parameters() -> None:
    program = fxonnx.export(Nested(), (torch.ones(2, 3),), input_names=["data", "learned_0", "learned_1"])
    assert {"learned_0", "learned_1"} <= set(program.model.graph.initializers)
    assert program.model.graph.initializers["learned_0"].metadata_props[ORIGINAL] == "p_fc1_weight"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"input_names": ["a", "b", "c", "d"]}, r"input_names: 'd' is not used: 4 names"),
        ({"output_names": ["a", "b"]}, r"output_names: 'b' is not used: 2 names for 1 outputs"),
        ({"input_names": ["a", "a"]}, r"input_names: 'a' is given twice"),
        ({"input_names": "x"}, r"input_names: expected a list of strings, got 'x'"),
        ({"output_names": [""]}, r"output_names: expected non-empty strings, got ''"),
        ({"input_names": ["a"], "output_names": ["a"]}, r"output_names: 'a' is also the name of an input"),
        ({"opset_version": 6}, r"opset_version: 6 is outside the supported opsets\nhint: pass a number from 7 to"),
        ({"opset_version": 99}, r"opset_version: 99 is outside"),
        ({"options": fxonnx.ExportOptions(ir_version="9")}, r"ir_version: expected an int, got '9'"),
        (
            {"options": fxonnx.ExportOptions(ir_version=8)},
            r"ir_version: 8 cannot be written: opset 20 needs 9, .*\nhint: pass a number from 9 to",
        ),
        ({"options": fxonnx.ExportOptions(ir_version=99)}, r"ir_version: 99 cannot be written"),
        ({"target": "coreml"}, r"target: expected one of None, 'onnxruntime', 'onnxruntime-cuda', .*, got 'coreml'"),
        (
            {"options": fxonnx.ExportOptions(patterns={"gelus": False})},
            r"unknown pattern 'gelus'\nhint: did you mean 'gelu'\? there are .*rms_norm",
        ),
        ({"options": fxonnx.ExportOptions(patterns="gelu")}, r"patterns: expected a dict .*, got 'gelu'\nhint: write"),
        ({"opset_version": "20"}, r"opset_version: expected an int, got '20'"),
        ({"opset_version": True}, r"opset_version: expected an int, got True"),
        ({"custom_translation_table": {aten.abs: print}}, r"the key aten.abs is an overload packet"),
        ({"custom_translation_table": {"aten.abs": print}}, r"the key 'aten.abs' is not an operator"),
        ({"custom_translation_table": {aten.abs.default: [3]}}, r"the value for aten.abs.default is a list"),
    ],
)
def test_errors_name_the_wrong_argument(options: dict[str, Any], match: str) -> None:
    with pytest.raises(fxonnx.ArgumentError, match=match):
        fxonnx.export(nn.Linear(3, 4), (torch.ones(2, 3),), **options)


def test_every_value_has_a_type_and_a_shape() -> None:
    program = fxonnx.export(Nested(), (torch.ones(2, 3),), dynamic_shapes=({0: "rows"},))
    values = [*program.model.graph.inputs, *program.model.graph.initializers.values()]
    values += [output for node in program.model.graph for output in node.outputs]
    assert all(value.type is not None and value.shape is not None for value in values)
    assert program.model.graph.outputs[0].shape == ("rows", 4)


def test_input_returned_as_output_keeps_its_name() -> None:
    program = outputs_of(lambda x, y: (y, y, x, x + 1), torch.ones(2), torch.zeros(2))
    assert [value.name for value in program.model.graph.inputs] == ["inputs_0", "inputs_1"]
    assert len({value.name for value in program.model.graph.outputs}) == 4
    found = program(torch.ones(2), torch.zeros(2))
    assert [value.tolist() for value in found] == [[0, 0], [0, 0], [1, 1], [2, 2]]


def test_unused_inputs_are_kept_and_none_outputs_have_no_counterpart() -> None:
    program = outputs_of(lambda x, y: (x + 1, None, x * 2), torch.ones(2), torch.zeros(3))
    assert len(program.model.graph.inputs) == 2
    assert [value.tolist() for value in program(torch.ones(2), torch.zeros(3))] == [[2, 2], [2, 2]]


def test_numbers_are_outputs_like_tensors() -> None:
    program = outputs_of(lambda x: (x.shape[0], x + 1, 3), torch.ones(2, 3), dynamic_shapes=(({0: "n"},),))
    found = program(torch.ones(5, 3))
    assert (found[0].item(), found[2].item()) == (5, 3)


def test_a_bool_is_an_output_like_a_tensor() -> None:
    program = outputs_of(lambda x: x.item(), torch.tensor(True))
    assert [program(torch.tensor(value))[0].item() for value in (True, False)] == [True, False]


def test_an_input_named_like_a_weight_keeps_its_name() -> None:
    class Clash(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.x

    program = fxonnx.export(Clash(), (torch.ones(2),), verify=True)
    assert program.model.graph.inputs[0].name == "x"
    assert list(program.model.graph.initializers) == ["x_1"]


def test_all_unsupported_operators_are_listed_at_once() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = aten._standard_gamma_grad.default(x, x)
        y = aten._standard_gamma_grad.default(y, x)
        return aten._dirichlet_grad.default(y, x, x)

    with pytest.raises(fxonnx.UnsupportedOperatorError) as caught:
        outputs_of(function, torch.ones(3, 3))
    assert [(row.name, row.count) for row in caught.value.operators] == [
        ("aten._standard_gamma_grad.default", 2),
        ("aten._dirichlet_grad.default", 1),
    ]
    assert "test_model.py:" in caught.value.operators[0].location
    assert "2 operators have no ONNX translation and no decomposition" in str(caught.value)
    assert "custom_translation_table={torch.ops.aten._standard_gamma_grad.default: my_function" in str(caught.value)


class Bits(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        masked = x.bitwise_and(3) ^ 1
        return nn.functional.dropout(y, 0.5, training=True) * masked


def test_error_names_the_lowest_supporting_opset() -> None:
    args = (torch.arange(5), torch.randn(5))
    with pytest.raises(fxonnx.UnsupportedOperatorError) as caught:
        fxonnx.export(Bits().eval(), args, opset_version=11)
    text = str(caught.value)
    assert "2 operators have no ONNX translation and no decomposition at opset 11:" in text
    assert sorted(row.lowest_opset for row in caught.value.operators if row.lowest_opset) == [12, 18]
    assert all("test_model.py:" in row.location for row in caught.value.operators)
    assert "is supported from opset 18" in text
    assert (caught.value.lowest_opset, caught.value.opset) == (18, 11)
    assert text.endswith("hint: pass opset_version=18")
    program = fxonnx.export(Bits().eval(), args, opset_version=18)
    assert program.model.opset_imports == {"": 18}


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 28, reason="onnx does not know the opset yet")
@pytest.mark.parametrize("opset", [27, 28])
def test_opsets_without_runtime_support(opset: int) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Softmax(-1)).eval()
    program = fxonnx.export(model, (torch.randn(2, 3),), dynamic_shapes=({0: "n"},), opset_version=opset)
    onnx.checker.check_model(program.model_proto, full_check=True)
    assert program.model.opset_imports == {"": opset}


def test_the_ir_version_can_be_chosen() -> None:
    program = fxonnx.export(
        SimpleAddModel(), (torch.ones(2), torch.ones(2)), options=fxonnx.ExportOptions(ir_version=9), verify=True
    )
    assert (program.model.ir_version, program.model_proto.ir_version) == (9, 9)


def test_custom_translations_have_precedence() -> None:
    def my_abs(op: Any, x: ir.Value) -> ir.Value:
        return op.Max(x, op.Neg(x))

    program = outputs_of(torch.abs, torch.ones(2), custom_translation_table={aten.abs.default: my_abs}, verify=True)
    assert [node.op_type for node in program.model.graph] == ["Neg", "Max"]


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (
            lambda op, x: op.Cast(x, to=ir.DataType.DOUBLE),
            r"aten.abs.default: the translation returned DOUBLE, torch returns FLOAT",
        ),
        (lambda op, x: op.Unsqueeze(x, [0]), r"the translation returned rank 2, torch returns rank 1"),
        (lambda op, x: op.Concat(x, x, axis=0), r"the translation returned shape \[4\], torch returns \[2\]"),
        (lambda op, x: (x, x), r"the translation returned 2 values, torch returns 1"),
        (lambda op, x: 3, r"the translation returned an int, not a value of the graph"),
        (lambda op, x: 1 // 0, r"ZeroDivisionError"),
    ],
)
def test_wrong_translation_is_rejected(function: Any, match: str) -> None:
    with pytest.raises(fxonnx.TranslationError, match=match) as caught:
        outputs_of(torch.abs, torch.ones(2), custom_translation_table={aten.abs.default: function})
    assert caught.value.target == "aten.abs.default"
    assert "test_model.py:" in caught.value.location


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import torch, sys; before = set(sys.modules); import fxonnx; print(*(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"onnxscript", "onnxruntime", "onnx", "sympy", "rich", "typer"} & set(loaded)


def test_updates_of_buffers_are_lost_with_a_warning() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x + self.count

    model = Counter()
    with pytest.warns(UserWarning, match=r"forward writes to 'count', but an ONNX model keeps no state"):
        program = fxonnx.export(model, (torch.ones(2),))
    assert program.model.metadata_props["pkg.fxonnx.lost_updates"] == '["count"]'
    assert len(program.model.graph.outputs) == 1
    assert [program(torch.ones(2))[0].tolist() for _ in range(2)] == [[2, 2], [2, 2]]
    assert model.count.tolist() == [0, 0]


def test_an_unsupported_operator_with_a_nested_result_is_reported() -> None:
    library = torch.library.Library("nested_results", "FRAGMENT")
    library.define("parts(Tensor x) -> (Tensor, Tensor[])")
    library.impl("parts", lambda x: (x.clone(), [x + 1, x + 2]), "CompositeExplicitAutograd")

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.ops.nested_results.parts(x)

    with pytest.raises(UnsupportedOperatorError, match=r"nested_results\.parts\.default"):
        fxonnx.export(Model().eval(), (torch.rand(4, 2),))
    table = {torch.ops.nested_results.parts.default: lambda op, x: [x, op.Add(x, 1.0), op.Add(x, 2.0)]}
    program = fxonnx.export(Model().eval(), (torch.ones(2),), custom_translation_table=table)
    assert [one.tolist() for one in program(torch.ones(2))] == [[1, 1], [2, 2], [3, 3]]


def test_source_lines_are_the_users() -> None:
    """Functions that replace torch's during the capture are no frames of the model."""

    class Cond(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))

    program = fxonnx.export(Cond().eval(), (torch.rand(3),))
    for node in program.model.graph:
        trace = node.metadata_props["pkg.torch.onnx.stack_trace"]
        assert "fxonnx/_capture" not in trace
        assert trace.splitlines()[-2].startswith('File "tests/lower/test_model.py", line ')
