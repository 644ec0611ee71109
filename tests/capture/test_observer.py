"""InputObserver: dynamic shapes and example inputs inferred from calls of a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxonnx
from fxonnx import ArgumentError, InputObserver

from ..models.torchvision_shim import import_torchvision

T = torch.rand


class Apply(nn.Module):
    def forward(self, x: Any, y: Any = None, *, scale: Any = 1.0, flag: bool = False) -> Any:
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves((x, y)) if isinstance(leaf, torch.Tensor)]
        outputs = [tensor.sum(0, keepdim=True) + tensor for tensor in tensors]
        return outputs if flag else [output * scale for output in outputs]


class Variadic(nn.Module):
    def forward(self, x: torch.Tensor, *ys: torch.Tensor, **more: torch.Tensor) -> list[torch.Tensor]:
        return [tensor + 1 for tensor in (x, *ys, *more.values())]


def observed(calls: list[tuple[tuple[Any, ...], dict[str, Any]]], model: nn.Module | None = None) -> InputObserver:
    model = (Apply() if model is None else model).eval()
    observer = InputObserver()
    with observer(model, store_n_calls=9):
        for args, kwargs in calls:
            model(*args, **kwargs)
    return observer


def shapes(tree: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tuple(tensor.shape), tree)


INFERRED = [
    pytest.param([((T(2, 5),), {}), ((T(2, 5),), {})], ({},), id="static"),
    pytest.param([((T(2, 5),), {}), ((T(3, 5),), {})], ({0: "x_dim_0"},), id="one-dim"),
    pytest.param(
        [((T(2, 5), T(2, 4)), {}), ((T(3, 6), T(3, 4)), {})],
        ({0: "x_dim_0", 1: "x_dim_1"}, {0: "x_dim_0"}),
        id="same-sizes-same-name",
    ),
    pytest.param(
        [((T(2, 5), T(5)), {}), ((T(3, 6), T(6)), {})],
        ({0: "x_dim_0", 1: "x_dim_1"}, {0: "x_dim_1"}),
        id="another-axis",
    ),
    pytest.param([((T(2),), {"y": T(4)}), ((), {"y": T(5), "x": T(2)})], {"x": {}, "y": {0: "y_dim_0"}}, id="by-keyword"),
    pytest.param([((), {"y": T(4), "x": T(2)}), ((T(2), T(5)), {})], {"x": {}, "y": {0: "y_dim_0"}}, id="signature-order"),
    pytest.param([((T(2), None), {}), ((T(3), None), {})], ({0: "x_dim_0"}, None), id="none-by-position"),
    pytest.param([((T(2),), {"y": None}), ((T(3),), {})], ({0: "x_dim_0"},), id="none-is-dropped"),
    pytest.param([((T(2),), {"scale": 1.0, "flag": False})] * 2, ({},), id="defaults-are-dropped"),
    pytest.param([((T(2),), {"flag": True})] * 2, {"x": {}, "flag": None}, id="constant"),
    pytest.param([((T(2),), {"scale": 2}), ((T(2),), {"scale": 3})], {"x": {}, "scale": "scale"}, id="int"),
    pytest.param(
        [(({"a": T(2), "b": [T(2, 3)]},), {}), (({"a": T(3), "b": [T(3, 4)]},), {})],
        ({"a": {0: "x_a_dim_0"}, "b": [{0: "x_a_dim_0", 1: "x_b_0_dim_1"}]},),
        id="nested",
    ),
    pytest.param([((T(2),), {}), ((T(3),), {"y": (T(3), T(1))})], {"x": {0: "x_dim_0"}, "y": ({}, {})}, id="missing"),
]  # fmt: skip


@pytest.mark.parametrize(("calls", "expected"), INFERRED)
def test_observed_calls_can_be_exported(calls: Any, expected: Any) -> None:
    observer = observed(calls)
    assert observer.infer_dynamic_shapes() == expected
    args, kwargs = observer.infer_arguments(as_args_kwargs=True)
    program = fxonnx.export(Apply().eval(), args, kwargs=kwargs, dynamic_shapes=expected)
    for row in observer.check_discrepancies(program, atol=1e-5, rtol=1e-5):
        assert row["SUCCESS"] or (row["n_none"] and "outputs" in row["error"]), row


def test_star_args_and_star_star_kwargs() -> None:
    calls = [((T(n), T(n + 1), T(2)), {"m": T(n), "k": T(4)}) for n in (2, 3)]
    observer = observed(calls, Variadic())
    found = observer.infer_dynamic_shapes()
    assert found == {
        "x": {0: "x_dim_0"},
        "ys": ({0: "ys_0_dim_0"}, {}),
        "more": {"m": {0: "x_dim_0"}, "k": {}},
    }
    args, kwargs = observer.infer_arguments(as_args_kwargs=True)
    program = fxonnx.export(Variadic().eval(), args, kwargs=kwargs, dynamic_shapes=found)
    assert [row["SUCCESS"] for row in observer.check_discrepancies(program)] == [True, True]
    with pytest.raises(
        ArgumentError,
        match=r"cannot be returned as one tuple or dict, because the signature has \*args.*\nhint: .*as_args_kwargs",
    ):
        observer.infer_arguments()


BATCH = [
    pytest.param(True, ({0: "batch", 1: "x_dim_1"}, {0: "batch"}), id="all"),
    pytest.param({"y"}, ({1: "x_dim_1"}, {0: "batch"}), id="by-name"),
    pytest.param({0}, ({0: "batch", 1: "x_dim_1"}, {}), id="by-position"),
    pytest.param(None, ({1: "x_dim_1"}, {}), id="none"),
]


@pytest.mark.parametrize(("wanted", "expected"), BATCH)
def test_batch_dimension_that_did_not_change(wanted: Any, expected: Any) -> None:
    calls = [((T(2, 5), T(2, 3)), {}), ((T(2, 6), T(2, 3)), {})]
    assert observed(calls).infer_dynamic_shapes(set_batch_dimension_for=wanted) == expected


def test_first_axes_of_different_sizes_are_not_a_batch() -> None:
    calls = [((T(2, 5), T(5)), {}), ((T(2, 6), T(6)), {})]
    expected = ({0: "batch", 1: "x_dim_1"}, {0: "x_dim_1"})
    assert observed(calls).infer_dynamic_shapes(set_batch_dimension_for=True) == expected


def test_arguments_of_one_call_are_completed() -> None:
    observer = observed([((T(2, 3),), {}), ((T(3, 3),), {"y": T(3, 4)}), ((T(4, 3),), {"y": T(4, 5)})])
    assert shapes(observer.infer_arguments()) == {"x": (3, 3), "y": (3, 4)}
    assert shapes(observer.infer_arguments(2)) == {"x": (4, 3), "y": (4, 5)}
    assert shapes(observer.infer_arguments(0)) == {"x": (2, 3), "y": (2, 0)}
    assert shapes(observer.infer_arguments(0, flat=True)) == [(2, 3), (2, 0)]
    assert shapes(observer.infer_arguments({"x": T(7, 3)})) == {"x": (7, 3), "y": (7, 0)}
    assert shapes(observer.infer_arguments((T(7, 3),), as_args_kwargs=True)) == (((7, 3),), {"y": (7, 0)})


def test_the_export_example_is_a_call_without_sizes_of_1() -> None:
    observer = observed([((T(1),), {}), ((T(3),), {})])
    assert shapes(observer.infer_arguments()) == ((3,),)


class Image(nn.Module):
    def forward(self, x: torch.Tensor, image: Any = None, past: Any = None) -> torch.Tensor:
        return x + (0 if image is None else image.sum()) + (0 if past is None else past.sum())


def test_value_if_missing() -> None:
    calls: list[dict[str, Any]] = [{"x": T(2), "image": T(3)}, {"x": T(3), "past": T(4)}, {"x": T(3), "past": T(5)}]
    for values, failure in (({}, True), ({"image": torch.zeros(0)}, False), ({1: torch.zeros(0)}, False)):
        observer, model = InputObserver(values), Image().eval()
        with observer(model):
            for call in calls:
                model(**call)
        if failure:
            with pytest.raises(
                ArgumentError, match="At least one call to the observed model must contain all the named"
            ):
                observer.infer_dynamic_shapes()
            continue
        expected = {"x": {0: "x_dim_0"}, "image": {0: "image_dim_0"}, "past": {0: "past_dim_0"}}
        assert observer.infer_dynamic_shapes() == expected
        assert shapes(observer.infer_arguments(0)) == {"x": (2,), "image": (3,), "past": (0,)}
        program = fxonnx.export(model, kwargs=observer.infer_arguments(), dynamic_shapes=expected)
        assert all(row["SUCCESS"] for row in observer.check_discrepancies(program))


def test_the_method_is_wrapped_and_restored() -> None:
    model, x = Apply().eval(), T(2)
    signature = inspect.signature(model.forward)
    observer = InputObserver()
    with observer(model, store_n_calls=2):
        assert inspect.signature(model.forward) == signature
        for _ in range(3):
            model(x)
    assert "forward" not in vars(model)
    with pytest.raises(ZeroDivisionError), observer(model):
        _ = 1 / 0
    assert "forward" not in vars(model)
    assert observer.num_obs() == 2

    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)

    model.forward = forward  # type: ignore[method-assign]
    with InputObserver() as second:
        second(model)
        assert model.forward is not forward
        model(x)
    assert model.forward is forward
    # The observer keeps copies of the tensors before and after the call.
    (kept,) = second.infer_arguments()
    torch.testing.assert_close(kept * 2, x)


def test_another_method_and_calls_that_fail() -> None:
    class Two(nn.Module):
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, -1)

    model = Two().eval()
    observer = InputObserver()
    with observer(model, method_name="encode"):
        model.encode(T(4))
        with pytest.raises(RuntimeError, match="shape"):
            model.encode(T(3))
        model.encode(T(6))
    assert observer.num_obs() == 2
    assert observer.infer_dynamic_shapes() == ({0: "x_dim_0"},)


def test_discrepancies_are_found() -> None:
    class Step(nn.Module):
        def __init__(self, step: float) -> None:
            super().__init__()
            self.step = step

        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
            return x + self.step, None, y

    observer = observed([((torch.ones(2), T(1)), {}), ((torch.ones(3), T(1)), {})], Step(1.0))
    good = fxonnx.export(Step(1.0).eval(), (T(2), T(1)), dynamic_shapes=({0: "n"}, None))
    wrong = fxonnx.export(Step(2.0).eval(), (T(2), T(1)), dynamic_shapes=({0: "n"}, None))
    static = fxonnx.export(Step(1.0).eval(), (T(2), T(1)))
    rows = observer.check_discrepancies(good)
    assert [(row["index"], row["SUCCESS"], row["n_inputs"], row["n_none"], row["n_empty"]) for row in rows] == [
        (0, True, 2, 0, 0),
        (1, True, 2, 0, 0),
    ]
    assert all(row["abs"] == row["rel"] == 0 and row["duration_torch"] > 0 and row["ort_duration"] > 0 for row in rows)
    assert [row["SUCCESS"] for row in observer.check_discrepancies(wrong)] == [False, False]
    assert observer.check_discrepancies(wrong)[0]["abs"] == 1
    assert all(row["SUCCESS"] for row in observer.check_discrepancies(wrong, atol=2))
    first, second = observer.check_discrepancies(static)
    assert first["SUCCESS"]
    assert not second["SUCCESS"]
    assert second["error"].startswith("error[FX001]: x: expected shape [2], got [3]\nhint: ")
    assert "returns 3 outputs" in observer.check_discrepancies(good, skip_none=False)[0]["error"]


def llama() -> nn.Module:
    import_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config).eval()


def test_generate_with_a_cache() -> None:
    torch.manual_seed(0)
    model: Any = llama()
    with InputObserver() as observer:
        observer(model, store_n_calls=6)
        for batch, length in ((2, 5), (3, 4)):
            model.generate(torch.randint(0, 32, (batch, length)), max_new_tokens=3, do_sample=False, pad_token_id=0)
    specs = observer.infer_dynamic_shapes(set_batch_dimension_for=True)
    cache = {0: "batch", 2: "past_key_values_0_key_dim_2"}
    assert specs["input_ids"] == {0: "batch", 1: "input_ids_dim_1"}
    assert specs["past_key_values"] == dict.fromkeys(("0.key", "0.value", "1.key", "1.value"), cache)
    program = fxonnx.export(model, kwargs=observer.infer_arguments(), dynamic_shapes=specs)
    rows = observer.check_discrepancies(program, atol=1e-5, rtol=1e-4)
    assert [(row["SUCCESS"], row["n_none"]) for row in rows] == [(True, 4), (True, 0), (True, 0)] * 2


def call_twice(first: Any, second: Any) -> Callable[[], Any]:
    return lambda: observed([((first,), {}), ((second,), {})]).infer_dynamic_shapes()


WRONG = [
    pytest.param(lambda: InputObserver().infer_dynamic_shapes(), r"No inputs were captured.\nhint: call the model inside", id="no-calls"),
    pytest.param(lambda: InputObserver().infer_arguments(), "No inputs were captured.", id="no-calls-arguments"),
    pytest.param(lambda: observed([((T(2),), {"y": T(2)}), ((T(2),), {"y": [T(2), T(3)]})]).infer_arguments(), r"Named argument 'y' has 1 tensors in one call and 2 in another: y; y\[0\], y\[1\]\nhint: containers must", id="structure"),
    pytest.param(lambda: observed([((T(2), [T(2)]), {}), ((T(2), [T(2), T(3)]), {})]).infer_arguments(), r"Positional argument 1 has 1 tensors in one call and 2 in another: y\[0\]; y\[0\], y\[1\]", id="positional-structure"),
    pytest.param(call_twice(T(2), T(2, 3)), r"x is torch.float32 of shape \(2,\) in one call and torch.float32 of shape \(2, 3\) in another", id="rank"),
    pytest.param(call_twice(T(2), T(2).long()), r"x is torch.float32 of shape \(2,\) in one call and torch.int64", id="dtype"),
    pytest.param(call_twice((T(2), 3), (T(2), T(2))), r"x\[1\] is a tensor in one call and none in another", id="tensor-or-int"),
    pytest.param(lambda: observed([((T(2),), {"scale": 2.0}), ((T(2),), {"scale": 3.0})]).infer_arguments(), r"Two calls were made with different constant values: scale is 2.0 and 3.0\nhint: it becomes a constant", id="floats"),
    pytest.param(lambda: observed([((T(2),), {"flag": True}), ((T(2),), {})]).infer_arguments(), "Two calls were made with different constant values: flag is True and False", id="default"),
    pytest.param(lambda: observed([((T(2),), {})]).infer_arguments(1), r"index_or_args_or_kwargs: call 1 was not recorded\nhint: 1 calls were recorded", id="index"),
    pytest.param(lambda: observed([((T(2),), {})]).infer_arguments({"z": T(2)}), r"InputObserver: a call does not match the signature \(x: .*unexpected keyword argument 'z'", id="keyword"),
    pytest.param(lambda: observed([((T(2),), {})]).infer_dynamic_shapes({"z"}), r"set_batch_dimension_for: 'z' is neither a name nor a position of a parameter\nhint: the parameters are: x, y, scale, flag", id="batch-name"),
    pytest.param(lambda: observed([((T(2),), {})]).infer_dynamic_shapes("x"), "set_batch_dimension_for: expected True or names and positions of parameters, got 'x'", id="batch-str"),
    pytest.param(lambda: InputObserver({9: T(2)})(Apply()), "value_if_missing: 9 is neither a name nor a position", id="missing-position"),
    pytest.param(lambda: InputObserver()(Apply(), method_name="encode"), r"method_name: Apply does not have a method 'encode'\nhint: try 'forward'", id="method"),
    pytest.param(lambda: InputObserver()(Apply(), store_n_calls=0), "store_n_calls: expected a positive int, got 0", id="count"),
    pytest.param(lambda: observed([((T(2),), {})])(Variadic()), r"model: Variadic.forward\(x: .*\) -> .* differs from the signature observed before, forward\(x: .*\nhint: use one InputObserver", id="another-model"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "match"), WRONG)
def test_inconsistent_calls(call: Callable[[], Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        call()
