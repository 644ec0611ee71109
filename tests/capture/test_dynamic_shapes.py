"""The forms of dynamic_shapes and dynamic_axes, the resulting dim names, and invalid specs."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils._sympy.numbers import int_oo

import fxonnx
from fxonnx._capture import Capture
from fxonnx.errors import ArgumentError, CaptureError

from .captures import capture

A = torch.zeros
d = Dim("d")


class Apply(nn.Module):
    """A model of two inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, y: Any) -> Any:
        return self.function(x, y)


def model(function: Callable[..., Any]) -> nn.Module:
    return Apply(function).eval()


def separate(x: Any, y: Any) -> Any:
    return torch.utils._pytree.tree_map_only((torch.Tensor, torch.SymInt), lambda value: value + 1, (x, y))


def inputs(captured: Capture) -> list[str]:
    """Each graph input with its dims under the user's names: ``x[n, 3]``."""

    def dim(size: Any) -> str:
        if not isinstance(size, torch.SymInt):
            return str(size)
        expression = size.node.expr
        return str(expression.subs({s: type(s)(n, integer=True) for s, n in captured.dim_names.items()}))

    signature = captured.exported_program.graph_signature
    shown = []
    for node in captured.exported_program.graph.find_nodes(op="placeholder"):
        if node.name in signature.user_inputs:
            value = node.meta["val"]
            dims = [dim(size) for size in value.shape] if isinstance(value, torch.Tensor) else [dim(value)]
            shown.append(f"{node.name}[{', '.join(dims)}]")
    return shown


Pair = namedtuple("Pair", ["a", "b"])


@dataclass
class Box:
    a: torch.Tensor
    b: torch.Tensor


torch.export.register_dataclass(Box)

FORMS = [
    pytest.param(A(4, 3), A(5, 3), ({0: "n"}, {0: "m"}), ["x[n, 3]", "y[m, 3]"], id="tuple"),
    pytest.param(A(4, 3), A(5, 3), [{0: "n"}, {0: "m"}], ["x[n, 3]", "y[m, 3]"], id="list"),
    pytest.param(A(4, 3), A(5, 3), {"x": {0: "n"}, "y": {0: "m"}}, ["x[n, 3]", "y[m, 3]"], id="dict"),
    pytest.param(A(4, 3), A(5, 3), {"y": {0: "m"}, "x": {0: "n"}}, ["x[n, 3]", "y[m, 3]"], id="dict-other-order"),
    pytest.param(A(4, 3), A(5, 3), {"y": {0: "m"}}, ["x[4, 3]", "y[m, 3]"], id="dict-partial"),
    pytest.param(A(4, 3), A(5, 3), ({-2: "n"}, {-1: "m"}), ["x[n, 3]", "y[5, m]"], id="negative-axis"),
    pytest.param(A(4, 3), A(5, 3), (("n", None), ["m", "k"]), ["x[n, 3]", "y[m, k]"], id="axes-as-sequence"),
    pytest.param(A(4, 3), A(5, 3), ((Dim("n"), 3), (5, Dim.STATIC)), ["x[n, 3]", "y[5, 3]"], id="dim-int-static"),
    pytest.param(A(4, 3), A(5, 3), ({0: d}, {0: Dim("e", min=2, max=9)}), ["x[d, 3]", "y[e, 3]"], id="dims"),
    pytest.param(A(4, 3), A(9, 3), ({0: d}, {0: 2 * d + 1}), ["x[d, 3]", "y[2*d + 1, 3]"], id="derived"),
    pytest.param(A(8, 3), A(9, 3), ({0: 2 * d}, {0: 2 * d + 1}), ["x[2*d, 3]", "y[2*d + 1, 3]"], id="derived-without-root"),
    pytest.param(A(4, 3), A(5, 3), ({0: "n"}, None), ["x[n, 3]", "y[5, 3]"], id="none"),
    pytest.param(A(4, 3), A(5, 3), {}, ["x[4, 3]", "y[5, 3]"], id="empty"),
    pytest.param(A(4, 3), (A(5), A(6)), ({0: "n"}, (None, None)), ["x[n, 3]", "y_0[5]", "y_1[6]"], id="tuple-of-none"),
    pytest.param(A(4, 3), (A(5), A(6)), ({0: "n"}, {}), ["x[n, 3]", "y_0[5]", "y_1[6]"], id="empty-for-tuple"),
    pytest.param(A(4, 3), (A(5), A(6)), (None, [("m",), {0: "k"}]), ["x[4, 3]", "y_0[m]", "y_1[k]"], id="list-for-tuple"),
    pytest.param(A(4), {"a": A(5), "b": [A(6)]}, (None, {"b": [{0: "m"}]}), ["x[4]", "y_a[5]", "y_b_0[m]"], id="nested"),
    pytest.param(A(4), OrderedDict(b=A(5), a=A(6)), (None, {"a": {0: "m"}}), ["x[4]", "y_b[5]", "y_a[m]"], id="ordered-dict"),
    pytest.param(A(4), Pair(A(5), A(6)), (None, (None, {0: "m"})), ["x[4]", "y_a[5]", "y_b[m]"], id="namedtuple"),
    pytest.param(A(4), Pair(A(5), A(6)), (None, {"b": {0: "m"}}), ["x[4]", "y_a[5]", "y_b[m]"], id="namedtuple-by-field"),
    pytest.param(A(4), Box(A(5), A(6)), (None, [None, {0: "m"}]), ["x[4]", "y_a[5]", "y_b[m]"], id="dataclass"),
    pytest.param(A(4), Box(A(5), A(6)), (None, {"b": {0: "m"}}), ["x[4]", "y_a[5]", "y_b[m]"], id="dataclass-by-field"),
    pytest.param(A(4), Box(A(5), A(6)), (None, Box({}, {0: "m"})), ["x[4]", "y_a[5]", "y_b[m]"], id="dataclass-as-spec"),
    pytest.param(A(4), 3, ({0: "n"}, "k"), ["x[n]", "y[k]"], id="int"),
    pytest.param(A(4), 3, ({0: "n"}, 3), ["x[n]"], id="static-int"),
    pytest.param(A(()), A(4), ((), ("n",)), ["x[]", "y[n]"], id="rank-0"),
    pytest.param(A(1, 3), A(0, 3), ({0: "n"}, {0: "m"}), ["x[n, 3]", "y[m, 3]"], id="example-size-1-and-0"),
    pytest.param(A(4, 3), A(5, 3), ({0: "batch size"}, None), ["x[batch size, 3]", "y[5, 3]"], id="name-with-space"),
]  # fmt: skip


@pytest.mark.parametrize(("x", "y", "shapes", "expected"), FORMS)
def test_forms(x: Any, y: Any, shapes: Any, expected: list[str]) -> None:
    assert inputs(capture(model(separate), (x, y), None, shapes)) == expected


def test_dim_hints_leave_torchs_symbol() -> None:
    captured = capture(model(separate), (A(4, 3), A(5, 3)), None, ({0: Dim.DYNAMIC}, {0: Dim.AUTO, 1: "k"}))
    first, second = (node.meta["val"] for node in captured.exported_program.graph.find_nodes(op="placeholder"))
    assert isinstance(first.shape[0], torch.SymInt)
    assert isinstance(second.shape[0], torch.SymInt)
    assert list(captured.dim_names.values()) == ["k"]


NAMES = [
    # One name on dims that are always equal.
    pytest.param(lambda x, y: x + y, 4, 4, ("n", "n"), ["n"], {}, ["x[n]", "y[n]"], id="same-name-equal"),
    pytest.param(lambda x, y: x + y, 4, 4, ("n", "m"), ["n"], {"n": ("m",)}, ["x[n]", "y[n]"], id="two-names-equal"),
    pytest.param(lambda x, y: x + y, 4, 4, (d, d), ["d"], {}, ["x[d]", "y[d]"], id="same-dim-equal"),
    pytest.param(lambda x, y: x + y, 4, 4, (d, Dim("e")), ["d"], {"d": ("e",)}, ["x[d]", "y[d]"], id="two-dims-equal"),
    pytest.param(lambda x, y: x + y, 4, 4, (d, "m"), ["d"], {"d": ("m",)}, ["x[d]", "y[d]"], id="dim-and-name-equal"),
    # One name on independent dims.
    pytest.param(lambda x, y: (x, y), 4, 5, ("n", "n"), ["n", "n_1"], {}, ["x[n]", "y[n_1]"], id="same-name-unrelated"),
    pytest.param(lambda x, y: torch.cat([x, y]), 4, 4, ("n", "n"), ["n"], {}, ["x[n]", "y[n]"], id="same-name-unproven"),
    # A derived size is an expression of the other dim's name.
    pytest.param(lambda x, y: x + y[1:], 4, 5, ("n", "m"), ["n"], {}, ["x[n]", "y[n + 1]"], id="names-related"),
    pytest.param(lambda x, y: x + y[1:], 4, 5, (d, Dim("e")), ["d"], {}, ["x[d]", "y[d + 1]"], id="dims-related"),
    pytest.param(lambda x, y: torch.cat([x, x]) - y, 4, 8, (d, Dim("e")), ["d"], {}, ["x[d]", "y[2*d]"], id="dims-multiple"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "first", "second", "specs", "names", "aliases", "expected"), NAMES)
def test_names(
    function: Any, first: int, second: int, specs: Any, names: list[str], aliases: dict[str, Any], expected: list[str]
) -> None:
    captured = capture(model(function), (A(first), A(second)), None, ({0: specs[0]}, {0: specs[1]}))
    assert list(captured.dim_names.values()) == names
    assert captured.dim_aliases == aliases
    assert inputs(captured) == expected


def test_a_generated_name_avoids_the_users_names() -> None:
    captured = capture(model(lambda x, y: (x, y)), (A(4, 5), A(6)), None, ({0: "n", 1: "n_1"}, {0: "n"}))
    assert inputs(captured) == ["x[n, n_1]", "y[n_2]"]


def test_names_follow_keywords_not_positions() -> None:
    captured = capture(model(separate), (), {"y": A(5, 3), "x": A(4, 3)}, {"x": {0: "xn"}, "y": {0: "yn"}})
    assert inputs(captured) == ["y[yn, 3]", "x[xn, 3]"]
    in_signature_order = capture(model(separate), (), {"y": A(5, 3), "x": A(4, 3)}, ({0: "xn"}, {0: "yn"}))
    assert inputs(in_signature_order) == ["y[yn, 3]", "x[xn, 3]"]


class Variadic(nn.Module):
    def forward(self, x: torch.Tensor, *rest: torch.Tensor, **more: torch.Tensor) -> Any:
        return x + 1, [value + 1 for value in rest], {key: value + 1 for key, value in more.items()}


VARIADIC = [
    pytest.param({"x": {0: "n"}, "rest": (None, {0: "m"}), "more": {"z": {0: "k"}}}, id="as-torch"),
    pytest.param({"x": {0: "n"}, "rest": (None, {0: "m"}), "z": {0: "k"}}, id="keyword-by-name"),
    pytest.param(({0: "n"}, (None, {0: "m"}), {0: "k"}), id="in-order"),
    pytest.param(({0: "n"}, None, {0: "m"}, {0: "k"}), id="flat"),
]


@pytest.mark.parametrize("shapes", VARIADIC)
def test_variadic_parameters(shapes: Any) -> None:
    captured = capture(Variadic().eval(), (A(4), A(5), A(6)), {"z": A(7)}, shapes)
    assert inputs(captured) == ["x[n]", "rest_0[5]", "rest_1[m]", "z[k]"]


def test_shapes_for_positional_inputs_only() -> None:
    captured = capture(Variadic().eval(), (A(4), A(5), A(6)), {"z": A(7)}, ({0: "n"}, {0: "m"}, None))
    assert inputs(captured) == ["x[n]", "rest_0[m]", "rest_1[6]", "z[7]"]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc_combined = nn.Linear(24, 8)

    def forward(self, tensor_x: torch.Tensor, input_dict: dict, input_list: list) -> torch.Tensor:
        return torch.sigmoid(self.fc_combined(torch.cat([tensor_x, input_dict["tensor_x"], input_list[0]], dim=1)))


def test_nested_inputs_with_one_batch() -> None:
    captured = capture(
        Mlp().eval(),
        (torch.rand(97, 8), {"tensor_x": torch.rand(97, 8)}, [torch.rand(97, 8)]),
        None,
        ({0: "batch_size"}, {"tensor_x": {0: "batch_size"}}, [{0: "batch_size"}]),
    )
    assert [shape.partition("[")[2] for shape in inputs(captured)] == ["batch_size, 8]"] * 3


PROGRAMS = [
    pytest.param({"y": {0: "yn"}, "x": {0: "xn"}}, ["x[xn, 3]", "y[yn, 3]"], id="dict"),
    pytest.param(({0: "xn"}, {0: "yn"}), ["x[xn, 3]", "y[yn, 3]"], id="tuple"),
]


@pytest.mark.parametrize(("shapes", "expected"), PROGRAMS)
@pytest.mark.parametrize("hint", [Dim.AUTO, Dim.DYNAMIC], ids=["auto", "dynamic"])
def test_exported_program_is_only_renamed(shapes: Any, expected: list[str], hint: Any) -> None:
    program = torch.export.export(model(separate), (A(4, 3), A(5, 3)), dynamic_shapes=({0: hint}, {0: hint}))
    assert inputs(capture(program, dynamic_shapes=shapes)) == expected


def test_exported_program_with_keywords_and_variadic_inputs() -> None:
    program = torch.export.export(
        model(separate), (), {"y": A(5, 3), "x": A(4, 3)}, dynamic_shapes={"x": {0: Dim.AUTO}, "y": {0: Dim.AUTO}}
    )
    assert inputs(capture(program, dynamic_shapes={"x": {0: "xn"}, "y": {0: "yn"}})) == ["y[yn, 3]", "x[xn, 3]"]
    variadic = torch.export.export(Variadic().eval(), (A(4), A(5)), dynamic_shapes=({0: Dim.AUTO}, ({0: Dim.AUTO},)))
    assert inputs(capture(variadic, dynamic_shapes=({0: "n"}, {0: "m"}))) == ["x[n]", "rest_0[m]"]


def test_name_for_a_static_dim_of_an_exported_program() -> None:
    program = torch.export.export(model(separate), (A(4, 3), A(5, 3)))
    with pytest.raises(
        CaptureError, match=r"captured with a fixed size of a dim .*\n  x axis 0, 'n', is always 4\nhint: pass dyn"
    ):
        capture(program, dynamic_shapes=({0: "n"}, None))


def fixes_both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.view(4, 3) + y


FIXED = [
    pytest.param(({0: "n"}, {0: "m"}), ["x axis 0, 'n', is always 4", "y axis 0, 'm', is always 4"], id="names"),
    pytest.param(
        ({0: Dim("n")}, {0: Dim("m")}), ["x axis 0, 'n', is always 4", "y axis 0, 'm', is always 4"], id="dims"
    ),
    pytest.param(({0: Dim.DYNAMIC}, None), ["x axis 0, Dim.DYNAMIC, is always 4"], id="hint"),
]


@pytest.mark.parametrize(("shapes", "lines"), FIXED)
def test_dynamic_dim_that_the_model_specializes(shapes: Any, lines: list[str]) -> None:
    with pytest.raises(CaptureError, match=r"the model specializes .* that should be dynamic") as info:
        capture(model(fixes_both), (A(4, 3), A(4, 3)), None, shapes)
    shown = [line for line in str(info.value).splitlines()[1:-1] if not line.startswith("    at: ")]
    assert shown == [f"  {line}" for line in lines]
    assert "hint: look for sizes that are literal numbers" in str(info.value)


def test_specialized_dims_are_named_in_containers_and_for_ints() -> None:
    fixes = model(lambda x, y: x.view(4) * y["a"][0].view(5)[0])
    with pytest.raises(CaptureError, match=r"  y\['a'\]\[0\] axis 0, 'm', is always 5"):
        capture(fixes, (A(4), {"a": [A(5)]}), None, (None, {"a": [{0: "m"}]}))
    with pytest.raises(CaptureError, match=r"  y, 'k', is always 3"):
        capture(model(lambda x, y: x.view(y)), (A(3), 3), None, (None, "k"))


def test_auto_dim_that_the_model_specializes_is_static() -> None:
    captured = capture(model(fixes_both), (A(4, 3), A(4, 3)), None, ({0: Dim.AUTO}, None))
    torch.testing.assert_close(captured.exported_program.module()(A(4, 3), A(4, 3)), A(4, 3))


NARROWED = [
    pytest.param(lambda x, y: x * 2 if x.shape[0] < 15 else x, Dim("w", min=2, max=20), (2, 14), id="max"),
    pytest.param(lambda x, y: x * 2 if x.shape[0] >= 3 else x, Dim("w", min=2, max=20), (3, 20), id="min"),
    pytest.param(lambda x, y: x * 2 if x.shape[0] >= 3 else x, Dim("w"), (3, int_oo), id="unbounded"),
]


@pytest.mark.parametrize(("function", "dim", "bounds"), NARROWED)
def test_narrowed_range_is_warned_about(function: Any, dim: Dim, bounds: tuple[int, int]) -> None:
    with pytest.warns(
        UserWarning, match=r"not be exported for all requested sizes, only for:\n  w [<>]= \d+\n"
    ) as caught:
        captured = capture(model(function), (A(4), A(5)), None, ({0: dim}, None))
    assert len(caught) == 1
    assert list(captured.dim_names.values()) == ["w"]
    (interval,) = captured.exported_program.range_constraints.values()
    assert (interval.lower, interval.upper) == bounds


def both(spec: Any) -> tuple[Any, Any]:
    return spec, None


WRONG = [
    pytest.param(A(4, 3), {"q": {0: "n"}}, r"'q' is not a parameter of forward and matches no graph input\nhint: .*forward's parameters: x, y; the example has: x, y", id="unknown"),
    pytest.param(A(4, 3), 3, "expected a dict, a tuple or a list, got 3", id="int"),
    pytest.param(A(4, 3), "n", "expected a dict, a tuple or a list, got 'n'", id="str"),
    pytest.param(A(4, 3), ({0: "n"},) * 3, r"it has 3 elements, but there are 2 inputs: x, y\nhint: pass one spec per input", id="too-many"),
    pytest.param(A(4, 3), both({2: "n"}), r"x has shape \(4, 3\), so it has no axis 2\nhint: its axes are 0 to 1", id="axis"),
    pytest.param(A(4, 3), both({-3: "n"}), r"x has shape \(4, 3\), so it has no axis -3", id="negative-axis"),
    pytest.param(A(()), both({0: "n"}), r"x has shape \(\), so it has no axis 0$", id="axis-of-scalar"),
    pytest.param(A(4, 3), both({0: "n", -2: "m"}), "axis 0 of x is given twice", id="axis-twice"),
    pytest.param(A(4, 3), both({"n": 0}), r"x is a tensor, but its spec has the key 'n'\nhint: the keys are axes", id="key"),
    pytest.param(A(4, 3), both(("n",)), r"x has shape \(4, 3\), but its spec has 1 entries: \('n',\)\nhint: name only the dyn", id="rank"),
    pytest.param(A(4, 3), both("n"), r"x is a tensor, but its spec is 'n'\nhint: pass a dim for each", id="name-for-tensor"),
    pytest.param(A(4, 3), both({0: ""}), "the name of axis 0 of x is empty", id="empty-name"),
    pytest.param(A(4, 3), both({0: 1.5}), r"the spec of axis 0 of x is 1.5\nhint: pass a name, a torch.export.Dim", id="float"),
    pytest.param(A(4, 3), both({0: True}), "the spec of axis 0 of x is True", id="bool"),
    pytest.param(A(4, 3), both({0: 5}), "the spec of axis 0 of x is 5, but the example has 4", id="wrong-size"),
    pytest.param(A(4, 3), both({0: Dim("w", min=5)}), r"the spec of axis 0 of x is Dim\('w', min=5\), but the example has 4", id="below"),
    pytest.param(A(4, 3), both({0: Dim.DYNAMIC(max=3)}), r"the spec of axis 0 of x is DimHint\(DYNAMIC, max=3\), but the example has 4", id="above"),
    pytest.param(A(4, 3), ({0: d}, {0: d}), r"Dim 'd' is 4 on axis 0 of x, but 5 on axis 0 of y\nhint: axes with the same Dim must have the same size", id="shared"),
    pytest.param((A(4), A(5)), both({0: "n"}), r"x is a tuple, but its spec is {0: 'n'}\nhint: .*one entry for each of: \[0\], \[1\]", id="axes-for-tuple"),
    pytest.param((A(4), A(5)), both((None,)), r"x has 2 elements, but its spec has 1: \(None,\)", id="tuple-length"),
    pytest.param((A(4), A(5)), both((None, ("n", "m"))), r"x\[1\] has shape \(5,\), but its spec has 2 entries", id="nested-rank"),
    pytest.param({"a": A(4)}, both({"b": {0: "n"}}), r"x has no key 'b'\nhint: its keys are: 'a'", id="dict-key"),
    pytest.param({"a": A(4)}, both([{0: "n"}]), r"x is a dict, but its spec is \[{0: 'n'}\]", id="list-for-dict"),
    pytest.param(Box(A(4), A(5)), both({"c": None}), r"x has no field 'c'\nhint: a Box has: a, b", id="field"),
    pytest.param(3, both(d), r"x is an int, whose spec cannot be a Dim\nhint: pass its name, 'd'", id="dim-for-int"),
    pytest.param(3, both({0: "n"}), r"x is the int 3, but its spec is {0: 'n'}\nhint: pass a name or Dim.DYNAMIC", id="axes-for-int"),
    pytest.param(1.5, both("n"), r"x is a float, which has no dims, but its spec is 'n'\nhint: pass None", id="float-input"),
    pytest.param(True, both("n"), "x is a bool, which has no dims", id="bool-input"),
    pytest.param(None, both({0: "n"}), "x is None or frozen, which has no dims", id="none-input"),
]  # fmt: skip


@pytest.mark.parametrize(("x", "shapes", "match"), WRONG)
def test_invalid_shapes(x: Any, shapes: Any, match: str) -> None:
    with pytest.raises(ArgumentError, match=f"dynamic_shapes: {match}"):
        capture(model(separate), (x, A(5, 3)), None, shapes)


def test_parameter_without_example() -> None:
    class Default(nn.Module):
        def forward(self, x: torch.Tensor, y: Any = None) -> torch.Tensor:
            return x

    with pytest.raises(ArgumentError, match="dynamic_shapes: 'y' is not among the example inputs"):
        capture(Default().eval(), (A(4),), None, {"y": {0: "n"}})


def test_spec_of_star_args_with_the_wrong_length() -> None:
    with pytest.raises(ArgumentError, match=r"\*rest has 2 inputs, but its spec is \(None,\)\nhint: pass a tuple of 2"):
        capture(Variadic().eval(), (A(4), A(5), A(6)), None, {"rest": (None,)})


def test_a_capture_that_fails_prints_no_graph(capfd: pytest.CaptureFixture[str]) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            positive = x[x > 0]
            return positive + 1 if positive.numel() > 3 else positive.sum()

    with pytest.raises(CaptureError, match="asks for the value of a tensor"):
        capture(Model().eval(), (torch.rand(5),))
    assert "def forward" not in "".join(capfd.readouterr())


# Invalid specs by name and by example, and the precedence of specs.


R = torch.rand


class Two(nn.Module):
    def forward(self, x: torch.Tensor, y: Any) -> Any:
        return [x * 2, *(value + 1 for value in torch.utils._pytree.tree_leaves(y))]


PAIR = (R(2, 3), [R(4, 3), R(4)])
NAMED = ["a", "b", "c"]

INVALID = [
    pytest.param({"dynamic_shapes": {"z": {0: "n"}}}, r"dynamic_shapes: 'z' is not a parameter of forward and matches no graph input\nhint: .*: x, y; the example has: x, y; the graph inputs are: x, y_0, y_1", id="unknown-key"),
    pytest.param({"dynamic_shapes": {"z.*": {0: "n"}, "x": {0: "n"}}}, r"dynamic_shapes: 'z\.\*' is not a parameter", id="pattern-of-nothing"),
    pytest.param({"dynamic_shapes": {7: {0: "n"}}}, r"dynamic_shapes: 7 is not a parameter", id="key-of-another-type"),
    pytest.param({"dynamic_shapes": {"d": {0: "n"}}, "input_names": NAMED}, r"dynamic_shapes: 'd' is not .*\nhint: .*the graph inputs are: a, b, c", id="user-names-are-listed"),
    pytest.param({"dynamic_shapes": {"y_1": {1: "n"}}}, r"dynamic_shapes: y\[1\] has shape \(4,\), so it has no axis 1\nhint: its axes are 0 to 0", id="axis-of-a-name"),
    pytest.param({"dynamic_shapes": {"*": {1: "n"}}}, r"dynamic_shapes: y\[1\] has shape \(4,\), so it has no axis 1", id="axis-of-a-pattern"),
    pytest.param({"dynamic_shapes": {"x": {0: "n"}}, "dynamic_axes": {"x": {0: "n"}}}, r"dynamic_axes: dynamic_shapes is also given\nhint: specify all dynamic dims in one of them", id="both"),
    pytest.param({"dynamic_axes": [{0: "n"}]}, r"dynamic_axes: expected a dict by names of inputs and outputs, got \[\{0: 'n'\}\]", id="axes-no-dict"),
    pytest.param({"dynamic_axes": {0: {0: "n"}}}, r"dynamic_axes: the key 0 is not the name of an input or output", id="axes-key"),
    pytest.param({"dynamic_axes": {"z": {0: "n"}}, "strict_shapes": True}, r"dynamic_axes: 'z' is neither an input nor an output\nhint: the inputs are: x, y_0, y_1; the outputs are: mul, add, add_1", id="axes-unknown"),
    pytest.param({"dynamic_axes": {"z": {0: "n"}}, "input_names": ["a"], "output_names": ["b"], "strict_shapes": True}, r"hint: the inputs are: a, y_0, y_1; the outputs are: b, add, add_1", id="axes-unknown-with-names"),
    pytest.param({"dynamic_axes": {"x": {2: "n"}}}, r"dynamic_axes: 'x' has shape \(2, 3\), so it has no axis 2", id="axes-axis"),
    pytest.param({"dynamic_axes": {"mul": {2: "n"}}}, r"dynamic_axes: 'mul' has shape \(2, 3\), so it has no axis 2", id="axes-axis-of-output"),
    pytest.param({"dynamic_axes": {"x": "n"}}, r"dynamic_axes: the spec of 'x' is 'n'\nhint: pass \{axis: name\} or \[axis, ...\]", id="axes-value"),
    pytest.param({"dynamic_axes": {"x": {"n": 0}}}, r"dynamic_axes: the spec of 'x' has the axis 'n'\nhint: pass \{axis: name\}", id="axes-reversed"),
    pytest.param({"dynamic_axes": {"x": {0: 7}}}, r"dynamic_axes: the name of axis 0 of 'x' is 7\nhint: pass a non-empty string", id="axes-name"),
    pytest.param({"more_inputs": [(R(3, 3), R(4))]}, r"more_inputs: expected pairs of a tuple and a dict, got a tuple and a Tensor\nhint: write \[\(\(x, y\), \{\}\), ...\]", id="more-no-kwargs"),
    pytest.param({"more_inputs": [R(3, 3)]}, r"more_inputs: expected pairs of args and kwargs, got a Tensor\nhint: write", id="more-no-pair"),
    pytest.param({"more_inputs": [((R(3, 3), [R(4, 3), R(4, 1)]), {})]}, r"more_inputs: y\[1\] is torch.float32 of shape \(4,\) in one call and torch.float32 of shape \(4, 1\) in another", id="more-rank"),
    pytest.param({"more_inputs": [((R(3, 3), [R(4, 3)]), {})]}, r"more_inputs: Positional argument 1 has 1 tensors in one call and 2 in another", id="more-structure"),
    pytest.param({"more_inputs": [((), {"q": R(3)})]}, r"more_inputs: a call does not match the signature \(x: .*unexpected keyword argument 'q'", id="more-keyword"),
    pytest.param({"more_inputs": [((R(5, 3), PAIR[1]), {})], "dynamic_shapes": {"x": {0: 2}}}, r"more_inputs: axis 0 of x is static in dynamic_shapes, but the examples have 2, 5\nhint: name it in dynamic_shapes", id="more-contradicts-int"),
    pytest.param({"more_inputs": [((R(5, 3), PAIR[1]), {})], "dynamic_shapes": {"x": {0: Dim.STATIC}}}, r"more_inputs: axis 0 of x is static in dynamic_shapes", id="more-contradicts-static"),
    pytest.param({"more_inputs": [((R(9, 3), PAIR[1]), {})], "dynamic_shapes": {"x": {0: Dim("n", max=8)}}}, r"the spec of axis 0 of x is Dim\('n', min=0, max=8\), but the example has 9", id="more-out-of-range"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "match"), INVALID)
def test_invalid_specs(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        fxonnx.torch_onnx_export(Two().eval(), PAIR, **options)


def dims(program: fxonnx.ONNXProgram) -> dict[str, list[str]]:
    graph = program.model.graph
    return {str(value.name): [str(dim) for dim in value.shape or ()] for value in [*graph.inputs, *graph.outputs]}


def test_parameters_take_precedence_over_names_and_names_over_patterns() -> None:
    shapes = {"*": {0: "third", 1: "last"}, "y_0": {0: "second"}, "x": {0: "first", 1: Dim.STATIC}}
    program = fxonnx.export(Two().eval(), (R(2, 3), [R(4, 3), R(4, 5)]), dynamic_shapes=shapes)
    found = dims(program)
    assert (found["x"], found["y_0"], found["y_1"]) == (["first", "3"], ["second", "last"], ["third", "last_1"])


class Found(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[x > 0], torch.cat([x, x])


@pytest.mark.parametrize("as_program", [False, True], ids=["module", "ExportedProgram"])
def test_dynamic_axes_name_dims_of_outputs(as_program: bool) -> None:
    axes = {"x": {0: "n"}, "found": {0: "count"}, "both": {0: "twice"}}
    x = torch.randn(6)
    model: Any = Found().eval()
    if as_program:
        model = torch.export.export(model, (x,), dynamic_shapes=({0: Dim.DYNAMIC},))
    program = fxonnx.torch_onnx_export(model, (x,), dynamic_axes=axes, output_names=["found", "both"])
    assert dims(program) == {"x": ["n"], "found": ["count"], "both": ["twice"]}


def test_an_exported_program_accepts_names_but_not_more_inputs() -> None:
    exported = torch.export.export(Two().eval(), PAIR, dynamic_shapes=({0: Dim.DYNAMIC}, [None, None]))
    program = fxonnx.export(exported, dynamic_shapes={"a": {0: "n"}}, input_names=NAMED)
    assert dims(program)["a"] == ["n", "3"]
    with pytest.raises(
        ArgumentError, match=r"more_inputs: the dims of an ExportedProgram are already fixed or dynamic\nhint: pass"
    ):
        fxonnx.export(exported, more_inputs=[(PAIR, {})])


def test_all_examples_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    verify = fxonnx.ONNXProgram.verify
    monkeypatch.setattr(
        fxonnx.ONNXProgram, "verify", lambda self, *args, **kwargs: calls.append(args) or verify(self, *args, **kwargs)
    )
    fxonnx.export(Two().eval(), PAIR, more_inputs=[((R(7, 3), PAIR[1]), {})], verify=True)
    assert len(calls) == 2
    assert calls[1][0][0].shape == (7, 3)
