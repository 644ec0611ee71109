"""Inlining of wrapped regions, and explicit casts for autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import fxonnx
from fxonnx._prepare.inline import inline_subgraphs
from fxonnx.errors import PrepareError
from tests.prepare.helpers import capture, own_copy, run, targets

aten = torch.ops.aten

ASSERTIONS = {
    aten._assert_tensor_metadata.default,
    aten._assert_scalar.default,
    aten._assert_async.default,
    aten._assert_async.msg,
    aten.sym_constrain_range_for_size.default,
}


def bf16(enabled: bool = True) -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled)


class Layers(nn.Module):
    """A module whose forward is a function of its layers."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def no_grad(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = self.fc(x)
    with torch.enable_grad():
        return (y + x) * 2


def nested(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        y = x + 1
        with bf16():
            z = self.fc(y) + x.shape[0]
            with bf16(False):
                w = z.float() @ x.mT
    return y, z, w


def set_grad(self: Any, x: torch.Tensor) -> torch.Tensor:
    torch.set_grad_enabled(False)
    y = x.sin()
    torch.set_grad_enabled(True)
    return y.cos()


@torch.compiler.nested_compile_region
def region(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin() + y, x * y


def compiled_region(self: Any, x: torch.Tensor) -> torch.Tensor:
    a, b = region(x, x.cos())
    c, d = region(a, b)
    return c + d


def checkpointed(self: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda value: self.fc(value).relu(), x, use_reentrant=False) + 1


def mixed(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with bf16():
        a = self.fc(x)
        b = F.layer_norm(a, (4,))
        c = torch.cat([b, x])
        d = c.softmax(-1)
        e = x.double() @ x.double().mT
        f = F.mse_loss(a, b)
    return a, b, c, d, e, f, x @ x.mT


def composite(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with bf16():
        return torch.einsum("bi,bj->ij", x, x), F.huber_loss(self.fc(x), x), x.view(-1, 2, 2).transpose(1, 2)


def inplace(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x + 0
    with bf16():
        a = self.fc(x)
        x.add_(1)
        return a, self.fc(x)


def inplace_between(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x + 0
    with bf16():
        a = self.fc(x)
        with bf16(False):
            x.add_(1)
        b = self.fc(x)
    x.mul_(2)
    with bf16():
        return a, b, self.fc(x)


def recurrent(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with bf16():
        return self.lstm(x)[0], self.rnn(x)[0]


def branches(self: Any, x: torch.Tensor) -> torch.Tensor:
    def one(value: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return value @ value

    def other(value: torch.Tensor) -> torch.Tensor:
        return (value * 2) @ value

    with bf16():
        return torch.cond(x.sum() > 0, one, other, (x,)) + 1


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "fc": lambda: nn.Linear(4, 4),
    "lstm": lambda: nn.LSTM(4, 4),
    "rnn": lambda: nn.RNN(4, 3),
}

MODELS: dict[str, tuple[Callable[..., Any], tuple[str, ...], bool]] = {
    "no_grad": (no_grad, ("fc",), True),
    "nested": (nested, ("fc",), False),
    "set_grad": (set_grad, (), True),
    "compiled_region": (compiled_region, (), False),
    "checkpointed": (checkpointed, ("fc",), False),
    "mixed": (mixed, ("fc",), True),
    "composite": (composite, ("fc",), True),
    "inplace": (inplace, ("fc",), True),
    "inplace_between": (inplace_between, ("fc",), True),
    "recurrent": (recurrent, ("lstm", "rnn"), False),
    "branches": (branches, (), False),
}
CASES = [(name, strict) for name, (_, _, both) in MODELS.items() for strict in ((False, True) if both else (False,))]
ROWS = [
    pytest.param(
        *(name, strict),
        marks=pytest.mark.xfail(
            name == "recurrent" and not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
            reason="torch: oneDNN has no LSTM in bfloat16 for this processor, in eager mode either",
            raises=RuntimeError,
        ),
        id=f"{name}{'-strict' * strict}",
    )
    for name, strict in CASES
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "strict"), ROWS)
def test_regions_are_inlined(name: str, strict: bool) -> None:
    function, layers, _ = MODELS[name]
    model = Layers(function, **{layer: LAYERS[layer]() for layer in layers})
    x = torch.randn(4, 4) if name == "branches" else torch.randn(3, 4)
    dynamic = ({0: Dim.DYNAMIC},) if name in ("no_grad", "nested", "mixed") else None
    program = capture(model, (x,), None if dynamic is None else {"args": dynamic}, strict)
    before = str(program.graph)
    gm = own_copy(program)

    inline_subgraphs(gm)

    assert str(program.graph) == before
    higher_order = [target for target in targets(gm) if isinstance(target, torch._ops.HigherOrderOperator)]
    assert higher_order == ([torch.ops.higher_order.cond] if name == "branches" else [])
    with torch.no_grad():
        expected = model(x)
    assert_close(run(gm, program, x), expected, rtol=0, atol=0)
    for node in gm.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            assert "val" in node.meta
            assert node.meta.get("nn_module_stack"), node
    noted = next(iter(reversed(gm.graph.nodes))).args[0]
    results = expected if isinstance(expected, tuple) else (expected,)
    assert [node.meta["val"].dtype for node in noted] == [result.dtype for result in results]
    if dynamic is not None:
        other = torch.randn(5, 4)
        with torch.no_grad():
            assert_close(run(gm, program, other), model(other), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")
def test_dtype_conversion_misrecorded_by_strict_capture_is_an_error() -> None:
    gm = own_copy(capture(Layers(nested, fc=LAYERS["fc"]()), (torch.randn(3, 4),), strict=True))
    with pytest.raises(PrepareError, match=r"conversion at .*test_inline\.py:\d+ as torch\.float32, but under"):
        inline_subgraphs(gm)


def test_results_keep_their_captured_names() -> None:
    program = capture(Layers(mixed, fc=LAYERS["fc"]()), (torch.randn(3, 4),))
    gm = own_copy(program)
    inline_subgraphs(gm)
    names = [node.name for node in next(iter(reversed(gm.graph.nodes))).args[0]]
    assert names == [spec.arg.name for spec in program.graph_signature.output_specs]


def test_casts_are_shared_and_only_inside_autocast() -> None:
    def function(self: Any, x: torch.Tensor) -> torch.Tensor:
        with bf16():
            return self.fc(x) * self.fc(x + 1) + x.sin()

    gm = own_copy(capture(Layers(function, fc=LAYERS["fc"]()), (torch.randn(3, 4),)))
    inline_subgraphs(gm)
    casts = sorted(node.args[0].name for node in gm.graph.nodes if node.target is aten.to.dtype)
    assert casts == ["add", "args_0", "p_fc_bias", "p_fc_weight"]


@pytest.mark.parametrize("strict", [False, True])
def test_assertions_and_their_sizes_are_removed(strict: bool) -> None:
    def function(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        torch._check(x.shape[0] > 2)
        n = x.sum().to(torch.int64).item()
        torch._check(n > 0)
        torch._check(n < 10)
        torch._assert_async(x.sum() > -100)
        return torch.zeros(n), x.to(torch.float64)

    x = torch.ones(4, 1)
    model = Layers(function)
    program = capture(model, (x,), {"args": ({0: Dim.DYNAMIC},)}, strict)
    gm = own_copy(program)
    inline_subgraphs(gm)
    assert targets(gm) == [
        aten.sum.default,
        aten.to.dtype,
        aten.item.default,
        aten.zeros.default,
        aten.to.dtype,
    ]
    assert_close(run(gm, program, x), model(x))


def test_graph_without_regions_is_unchanged() -> None:
    gm = own_copy(capture(Layers(lambda self, x: self.fc(x).relu(), fc=LAYERS["fc"]()), (torch.randn(3, 4),)))
    before = str(gm.graph)
    inline_subgraphs(gm)
    assert str(gm.graph) == before


VMAPS: dict[str, Callable[..., Any]] = {
    "layer": lambda self, x: torch.vmap(lambda row: self.fc(row) + row.sum())(x),
    "nested": lambda self, x: torch.vmap(torch.vmap(lambda a: a * 2 + torch.arange(3.0)))(x) - x[..., None],
    "mask": lambda self, x: torch.vmap(torch.vmap(lambda i, j: j <= i, in_dims=(None, 0)), in_dims=(0, None))(
        torch.arange(x.shape[0]), torch.arange(4)
    ),
    "out_dims": lambda self, x: torch.vmap(lambda row: (row, row.sum()), out_dims=(1, 0))(x),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "strict"), [*((name, False) for name in VMAPS), ("nested", True), ("mask", True), ("out_dims", True)]
)
def test_vmap_becomes_calls_on_whole_batches(name: str, strict: bool) -> None:
    model = Layers(VMAPS[name], fc=LAYERS["fc"]())
    program = capture(model, (torch.randn(3, 4),), {"args": ({0: Dim.DYNAMIC},)}, strict)
    gm = own_copy(program)

    inline_subgraphs(gm)

    assert not [target for target in targets(gm) if "functorch" in getattr(target, "__module__", "")]
    for size in (3, 5):
        x = torch.randn(size, 4)
        with torch.no_grad():
            assert_close(run(gm, program, x), model(x))


def test_untraceable_vmap_error_names_the_source_line() -> None:
    gm = own_copy(capture(Layers(VMAPS["layer"], fc=LAYERS["fc"]()), (torch.randn(3, 4),)))
    # A call without a batching rule, like a custom operator.
    linear = next(node for node in gm.graph.nodes if node.target is aten.linear.default)
    linear.target = lambda *_: {}["no rule"]
    message = r"torch\.vmap at .*test_inline\.py:\d+ cannot be converted .*no rule.*\nhint: write the function for the whole batch"
    with pytest.raises(PrepareError, match=message):
        inline_subgraphs(gm)
    inline_subgraphs(own_copy(capture(Layers(lambda self, x: self.fc(x), fc=LAYERS["fc"]()), (torch.randn(3, 4),))))
    assert torch._C._functorch.maybe_get_level(torch.ones(1)) in (None, -1)


HOPS = torch.ops.higher_order


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        (HOPS.wrap, lambda body, x: (body, x)),
        (HOPS.tag_activation_checkpoint, lambda body, x: (body, x)),
        (HOPS.wrap_activation_checkpoint, lambda body, x: (body, x)),
        (HOPS.strict_mode, lambda body, x: (body, (x,))),
        (HOPS.hints_wrapper, lambda body, x: (body, (x,), {}, {"hint": 1})),
    ],
)
def test_other_wrappers_are_inlined(target: Any, arguments: Callable[..., tuple[Any, ...]]) -> None:
    model, x = Layers(set_grad), torch.randn(3, 4)
    program = capture(model, (x,))
    gm = own_copy(program)
    call = next(node for node in gm.graph.nodes if node.target is HOPS.wrap_with_set_grad_enabled)
    call.args = arguments(*call.args[1:])
    call.target = target
    inline_subgraphs(gm)
    assert targets(gm) == [aten.sin.default, aten.cos.default]
    assert_close(run(gm, program, x), model(x))


def test_a_subgraph_called_with_the_wrong_arguments_is_an_error() -> None:
    gm = own_copy(capture(Layers(set_grad), (torch.randn(3, 4),)))
    call = next(node for node in gm.graph.nodes if node.target is HOPS.wrap_with_set_grad_enabled)
    call.args = call.args[:2]
    with pytest.raises(
        PrepareError, match=r"wrap_with_set_grad_enabled at .* passes 0 arguments to a subgraph of 1 inputs"
    ):
        inline_subgraphs(gm)


def test_a_missing_subgraph_is_an_error() -> None:
    gm = own_copy(capture(Layers(set_grad), (torch.randn(3, 4),)))
    next(node for node in gm.graph.nodes if node.op == "get_attr").target = "nowhere"
    with pytest.raises(PrepareError, match="reads the attribute 'nowhere', which its graph module does not have"):
        inline_subgraphs(gm)
    next(node for node in gm.graph.nodes if node.op == "get_attr").target = "training"
    with pytest.raises(PrepareError, match="'training' is called as a subgraph, but is a bool"):
        inline_subgraphs(gm)


def test_call_with_internal_autocast_must_be_decomposable(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("no idea")

    monkeypatch.setattr("fxonnx._prepare.autocast.decompositions", lambda _: [broken])
    gm = own_copy(capture(Layers(composite, fc=LAYERS["fc"]()), (torch.randn(3, 4),)))
    message = r"casts inside aten\.einsum\.default at .*test_inline\.py:\d+, .* no idea\nhint: turn autocast off for this call"
    with pytest.raises(PrepareError, match=message):
        inline_subgraphs(gm)

    def without_casts(self: Any, x: torch.Tensor) -> torch.Tensor:
        with bf16(), torch.autocast("cpu", enabled=False):
            return torch.einsum("bi,bj->ij", x, x)

    inline_subgraphs(own_copy(capture(Layers(without_casts), (torch.randn(3, 4),))))


def test_autocast_effect_not_expressible_by_casts_is_an_error() -> None:
    with torch.library._scoped_library("fxonnx_test", "FRAGMENT") as library:
        library.define("halve(Tensor x) -> Tensor")
        operator = torch.ops.fxonnx_test.halve.default

        def halve(x: torch.Tensor) -> torch.Tensor:
            return x / 2

        def narrowing(x: torch.Tensor) -> torch.Tensor:
            with torch.amp.autocast("cpu", enabled=False):
                return torch.ops.fxonnx_test.halve(x).to(torch.bfloat16)

        library.impl("halve", halve, "CompositeExplicitAutograd")
        library.impl("halve", narrowing, "AutocastCPU")

        def function(self: Any, x: torch.Tensor) -> torch.Tensor:
            with bf16():
                return operator(x)

        gm = own_copy(capture(Layers(function), (torch.randn(3, 4),)))
        with pytest.raises(PrepareError, match=r"autocast makes fxonnx_test\.halve\.default at .* return .*bfloat16"):
            inline_subgraphs(gm)


@pytest.mark.filterwarnings("ignore")
def test_control_flow_on_a_value_misrecorded_by_strict_capture_is_an_error() -> None:
    def function(self: Any, x: torch.Tensor) -> torch.Tensor:
        with bf16():
            y = self.fc(x)
        return torch.cond(x.sum() > 0, lambda value: value + 1, lambda value: value * 2, (y,))

    gm = own_copy(capture(Layers(function, fc=LAYERS["fc"]()), (torch.randn(3, 4),), strict=True))
    with pytest.raises(PrepareError, match=r"cond at .* reads a value computed under autocast"):
        inline_subgraphs(gm)


def test_a_region_beside_nested_branches() -> None:
    """The subgraphs of a subgraph stay when a region of its owner has been inlined."""

    def function(self: Any, x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        with bf16(False):
            x = self.fc(x).sin()
        for factor in factors:
            if factor == 3:
                continue
            x = x * factor
        return x

    model = Layers(function, fc=LAYERS["fc"]()).eval()
    x = torch.randn(3, 4)
    program = fxonnx.export(model, (x, torch.tensor([1, 3, 2])), dynamic_shapes=({0: "n"}, {0: "k"}))
    for factors in ([1, 3, 2], [3], [4]):
        assert_close(program(x, torch.tensor(factors))[0], model(x, torch.tensor(factors)).detach())
