"""Shape rules return the same fake results as torch's decompositions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from fxonnx._capture.patches.shape_rules import RULES
from fxonnx_translations._torch_compat import FakeTensor, FakeTensorMode, shape_config

aten = torch.ops.aten


@pytest.fixture
def mode() -> Iterator[FakeTensorMode]:
    """Fake tensors with the settings of an export: sizes of 1 in the example are dynamic."""
    with shape_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        yield FakeTensorMode(shape_env=ShapeEnv())


def _fake(mode: FakeTensorMode, tensor: torch.Tensor, *dynamic: int) -> FakeTensor:
    sizes = [DimDynamic.DYNAMIC if axis in dynamic else DimDynamic.STATIC for axis in range(tensor.dim())]
    fake: FakeTensor = mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))
    return fake


def _image(mode: FakeTensorMode, batch: int = 1, dtype: torch.dtype = torch.float32) -> FakeTensor:
    return _fake(mode, torch.rand(batch, 6, 8, 8).to(dtype), 0, 2, 3)


def _weights(mode: FakeTensorMode, *shape: int) -> FakeTensor:
    return _fake(mode, torch.rand(shape))


def _description(results: Any) -> list[Any]:
    results = results if isinstance(results, tuple) else (results,)
    return [
        (type(result), [str(size) for size in (*result.shape, *result.stride())], result.dtype, result.device)
        for result in results
    ]


Arguments = Callable[[FakeTensorMode], tuple[Any, ...]]

CASES: dict[str, tuple[Any, Arguments]] = {
    "hardswish": (aten.hardswish.default, lambda mode: (_image(mode),)),
    "hardswish_": (aten.hardswish_.default, lambda mode: (_image(mode, 2),)),
    "leaky_relu_": (aten.leaky_relu_.default, lambda mode: (_image(mode), 0.1)),
    "gelu": (aten.gelu.default, lambda mode: (_image(mode, dtype=torch.float16),)),
    "clamp": (aten.clamp.default, lambda mode: (_image(mode), 0, 6.0)),
    "clamp of one bound": (aten.clamp.default, lambda mode: (_image(mode), None, 6)),
    "add": (aten.add.Tensor, lambda mode: (x := _image(mode), x)),
    "add of a number": (aten.add.Tensor, lambda mode: (_image(mode), 3)),
    "mul of channels": (aten.mul.Tensor, lambda mode: (_weights(mode, 6, 1, 1), _image(mode))),
    "div of ones": (aten.div.Tensor, lambda mode: (_image(mode), _weights(mode, 1, 6, 1, 1))),
    "sub of an image": (aten.sub.Tensor, lambda mode: (x := _image(mode), x[0])),
    "addmm": (
        aten.addmm.default,
        lambda mode: (
            _weights(mode, 4),
            _image(mode)[0, 0, :, :].new_empty(_image(mode).shape[0], 5),
            _weights(mode, 5, 4),
        ),
    ),
    "layer_norm": (
        aten.native_layer_norm.default,
        lambda mode: (_fake(mode, torch.rand(1, 8, 6), 0, 1), [6], _weights(mode, 6), _weights(mode, 6), 1e-5),
    ),
    "layer_norm of channels": (
        aten.native_layer_norm.default,
        lambda mode: (_image(mode).permute(0, 2, 3, 1), [6], _weights(mode, 6), None, 1e-5),
    ),
    "group_norm": (
        aten.native_group_norm.default,
        lambda mode: (
            x := _image(mode),
            _weights(mode, 6),
            _weights(mode, 6),
            x.shape[0],
            6,
            x.shape[2] * x.shape[3],
            3,
            1e-5,
        ),
    ),
    "batch_norm": (
        aten._native_batch_norm_legit_no_training.default,
        lambda mode: (_image(mode), *(_weights(mode, 6) for _ in range(4)), 0.1, 1e-5),
    ),
    "batch_norm of the batch": (
        aten._native_batch_norm_legit.no_stats,
        lambda mode: (_image(mode), _weights(mode, 6), _weights(mode, 6), True, 0.1, 1e-5),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rule_results_equal_those_of_torch_without_guards(name: str, mode: FakeTensorMode) -> None:
    operator, arguments = CASES[name]
    given = arguments(mode)
    found = RULES[operator](mode, *given)
    assert found is not None
    assert mode.shape_env is not None
    guards = list(mode.shape_env.guards)
    with mode:
        expected = operator(*given)
    assert _description(found) == _description(expected)
    assert mode.shape_env.guards == guards
    assert not mode.shape_env.deferred_runtime_asserts


REFUSED: dict[str, tuple[Any, Arguments]] = {
    "static": (aten.gelu.default, lambda mode: (_fake(mode, torch.rand(2, 3)),)),
    "integers": (aten.clamp.default, lambda mode: (_fake(mode, torch.ones(2, 3, dtype=torch.int64), 0), 0, 1)),
    "transposed": (aten.gelu.default, lambda mode: (_image(mode, 2).transpose(1, 3),)),
    "clamp without bounds": (aten.clamp.default, lambda mode: (_image(mode),)),
    "clamp by a tensor": (aten.clamp.default, lambda mode: (_image(mode), _weights(mode, 1))),
    "add of another type": (aten.add.Tensor, lambda mode: (_image(mode), _weights(mode, 1).double())),
    "add of other sizes": (aten.add.Tensor, lambda mode: (_image(mode, 2), _image(mode, 3)[:1])),
    "add of a scalar tensor": (aten.add.Tensor, lambda mode: (_image(mode), _weights(mode))),
    "layer_norm of a dynamic axis": (
        aten.native_layer_norm.default,
        lambda mode: (x := _image(mode), [x.shape[3]], None, None, 1e-5),
    ),
    "layer_norm of other weights": (
        aten.native_layer_norm.default,
        lambda mode: (_fake(mode, torch.rand(1, 8, 6), 0, 1), [6], _weights(mode, 5), None, 1e-5),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rule_does_not_apply_if_torch_may_add_a_guard(name: str, mode: FakeTensorMode) -> None:
    operator, arguments = REFUSED[name]
    assert RULES[operator](mode, *arguments(mode)) is None


def test_every_rule_has_a_case() -> None:
    tested = {RULES[operator] for operator, _ in CASES.values()}
    assert tested == set(RULES.values())
