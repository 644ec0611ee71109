"""Shape rules return the same fake results as torch's decompositions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from fxonnx._capture.patches.shape_rules import META_KERNELS, PERMUTATIONS, RULES, VIEWS, dispatch
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


def _channels_last(mode: FakeTensorMode, *dynamic: int) -> FakeTensor:
    return _fake(mode, torch.rand(1, 6, 8, 8).to(memory_format=torch.channels_last), *dynamic)


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
    "clone": (aten.clone.default, lambda mode: (_fake(mode, torch.ones(4, 6, dtype=torch.int64), 0),)),
    "view": (
        aten.view.default,
        lambda mode: (x := _image(mode, 2), [x.shape[0], x.shape[2] * x.shape[3], 2, 3]),
    ),
    "view of integers": (
        aten._unsafe_view.default,
        lambda mode: (x := _fake(mode, torch.ones(4, 6, dtype=torch.int64), 0), [2, 3, x.shape[0]]),
    ),
    "view of the same shape": (aten.view.default, lambda mode: (x := _image(mode, 2), list(x.shape))),
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
    "group_norm of channels last": (
        aten.native_group_norm.default,
        lambda mode: (x := _channels_last(mode, 0), _weights(mode, 6), _weights(mode, 6), x.shape[0], 6, 64, 3, 1e-5),
    ),
    "group_norm of channels last without bias": (
        aten.native_group_norm.default,
        lambda mode: (x := _channels_last(mode, 0), _weights(mode, 6), None, x.shape[0], 6, 64, 3, 1e-5),
    ),
    "silu of channels last": (aten.silu.default, lambda mode: (_channels_last(mode, 0),)),
    "relu_ of channels last": (aten.relu_.default, lambda mode: (_channels_last(mode, 0),)),
    "add of channels last": (aten.add.Tensor, lambda mode: (x := _channels_last(mode, 0), x)),
    "div of channels last": (aten.div.Tensor, lambda mode: (_channels_last(mode, 0), 2.0)),
    "grid_sampler": (
        aten.grid_sampler_2d.default,
        lambda mode: (x := _image(mode), x.new_empty(x.shape[0], 5, x.shape[2] * 3, 2), 0, 0, False),
    ),
    "grid_sampler of static sizes": (
        aten.grid_sampler_2d.default,
        lambda mode: (_weights(mode, 2, 6, 4, 5), _weights(mode, 2, 3, 2, 2), 1, 1, True),
    ),
    "grid_sampler at transposed points": (
        aten.grid_sampler_2d.default,
        lambda mode: (x := _image(mode, 2), x.new_empty(7, 3, x.shape[0], 2).transpose(0, 2), 0, 0, False),
    ),
    "grid_sampler of channels last": (
        aten.grid_sampler_2d.default,
        lambda mode: (_channels_last(mode), _weights(mode, 1, 3, 2, 2), 0, 0, False),
    ),
    "grid_sampler by cubes": (
        aten.grid_sampler_2d.default,
        lambda mode: (x := _image(mode), x.new_empty(x.shape[0], 1, 7, 2), 2, 0, True),
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
    "integers": (aten.clamp.default, lambda mode: (_fake(mode, torch.ones(2, 3, dtype=torch.int64), 0), 0, 1)),
    "transposed": (aten.gelu.default, lambda mode: (_image(mode, 2).transpose(1, 3),)),
    "clamp without bounds": (aten.clamp.default, lambda mode: (_image(mode),)),
    "clamp by a tensor": (aten.clamp.default, lambda mode: (_image(mode), _weights(mode, 1))),
    "add of another type": (aten.add.Tensor, lambda mode: (_image(mode), _weights(mode, 1).double())),
    "add of other sizes": (aten.add.Tensor, lambda mode: (_image(mode, 2), _image(mode, 3)[:1])),
    "add of a scalar tensor": (aten.add.Tensor, lambda mode: (_image(mode), _weights(mode))),
    "add of channels last": (aten.add.Tensor, lambda mode: (_channels_last(mode, 0), _image(mode))),
    "gelu of channels last of dynamic size": (aten.gelu.default, lambda mode: (_channels_last(mode, 0, 2, 3),)),
    "group_norm of channels last of dynamic size": (
        aten.native_group_norm.default,
        lambda mode: (
            x := _channels_last(mode, 0, 2, 3),
            None,
            None,
            x.shape[0],
            6,
            x.shape[2] * x.shape[3],
            3,
            1e-5,
        ),
    ),
    "group_norm of channels last without weights": (
        aten.native_group_norm.default,
        lambda mode: (_channels_last(mode), None, None, 1, 6, 64, 3, 1e-5),
    ),
    "group_norm of channels last of static size": (
        aten.native_group_norm.default,
        lambda mode: (_channels_last(mode), _weights(mode, 6), None, 1, 6, 64, 3, 1e-5),
    ),
    "view of another number of elements": (aten.view.default, lambda mode: (x := _image(mode), [x.shape[0], 64])),
    "clone of a transposed image": (aten.clone.default, lambda mode: (_image(mode, 2).transpose(1, 3),)),
    "view of an inferred size": (aten.view.default, lambda mode: (x := _image(mode), [x.shape[0], -1])),
    "view of a transposed image": (
        aten.view.default,
        lambda mode: (x := _image(mode, 2).transpose(2, 3), [x.shape[0], 6, x.shape[2] * x.shape[3]]),
    ),
    "grid_sampler of another batch": (
        aten.grid_sampler_2d.default,
        lambda mode: (_image(mode, 2), _image(mode, 2).new_empty(_image(mode, 2).shape[0], 5, 3, 2), 0, 0, False),
    ),
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


SHAPE = (2, 3, 4)
LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: torch.rand(SHAPE),
    "transposed": lambda: torch.rand(4, 3, 2).transpose(0, 2),
    "sliced": lambda: torch.rand(2, 3, 9)[..., 1::2],
    "expanded": lambda: torch.rand(2, 1, 4).expand(SHAPE),
    "one": lambda: torch.rand(1, 1, 1),
    "empty": lambda: torch.rand(2, 0, 4),
    "half": lambda: torch.rand(SHAPE).half(),
    "integers": lambda: torch.ones(SHAPE, dtype=torch.int64),
    "booleans": lambda: torch.ones(SHAPE, dtype=torch.bool),
    "odd strides of ones": lambda: torch.rand(8, 4).as_strided((1, 4), (9, 1))[:, None],
}
KERNEL_ARGUMENTS: dict[Any, Callable[[torch.Tensor], list[tuple[Any, ...]]]] = {
    aten.as_strided.default: lambda x: [(x, [2], [1], 0)],
    aten.expand.default: lambda x: [(x[None], [5, -1, -1, -1]), (x, x.shape)],
    aten.permute.default: lambda x: [(x, [2, 0, 1])],
    aten.select.int: lambda x: [(x, 0, 0), (x, -1, -1)],
    aten.slice.Tensor: lambda x: [(x, 1, 0, 1), (x, -1, -2, 2**63 - 1, 2)],
    aten.squeeze.dim: lambda x: [(x, 1)],
    aten.squeeze.dims: lambda x: [(x, [0, 1])],
    aten.t.default: lambda x: [(x[0],)],
    aten.transpose.int: lambda x: [(x, 0, -1)],
    aten.unsqueeze.default: lambda x: [(x, 0), (x, -1)],
    aten._softmax.default: lambda x: [(x, -1, False)],
    aten.add.Tensor: lambda x: [(x, x), (x, 2), (x, x[:, :1]), (x, x.new_empty(x.shape[2]).double())],
    aten.add_.Tensor: lambda x: [(x, 1), (x, x)],
    aten.addmm.default: lambda x: [(x.new_empty(x.shape[2]), x[0], x.new_empty(x.shape[2], x.shape[2]))],
    aten.bmm.default: lambda x: [(x, x.transpose(1, 2))],
    aten.clone.default: lambda x: [(x,)],
    aten.constant_pad_nd.default: lambda x: [(x, [1, 0, 0, 2])],
    aten.div.Tensor: lambda x: [(x, x), (x, 2)],
    aten.mean.dim: lambda x: [(x, [1], True), (x, [-1, 0]), (x, None)],
    aten.mm.default: lambda x: [(x[0], x[0].t())],
    aten.mul.Tensor: lambda x: [(x, x[:, :1]), (x, 0.5), (x[0], x)],
    aten.pow.Tensor_Scalar: lambda x: [(x, 2), (x, 0.5)],
    aten.sub.Tensor: lambda x: [(x, x), (x, 1.5)],
    aten.view.default: lambda x: [
        (x, [-1]),
        (x, [x.numel()]),
        (x, [2, -1, -3]),
        (x, [5, -1]),
        (x, [0]),
        (x, [x.shape[0], 1, x.shape[1] * x.shape[2]]),
    ],
    aten._unsafe_view.default: lambda x: [(x, [x.shape[0] * x.shape[1], x.shape[2]])],
    aten.where.self: lambda x: [(x > 0, x, x[:1]), (x > 0, x.new_empty(()), x)],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operator", [*META_KERNELS, *sorted(VIEWS | PERMUTATIONS, key=str)], ids=str)
def test_meta_kernel_of_static_sizes(operator: Any, layout: str) -> None:
    """The same result, or the same exception, as without the rule: sizes, strides, offset, dtype and memory."""
    example = LAYOUTS[layout]()
    for position in range(len(KERNEL_ARGUMENTS.get(operator, lambda x: [(x,)])(example))):
        expected, found = (_outcome(operator, example, position, fast=fast) for fast in (False, True))
        assert found == expected


def _outcome(operator: Any, example: torch.Tensor, position: int, *, fast: bool) -> Any:
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
    # The memory of an empty result depends on whether the cache is hit.
    mode.cache_enabled = False
    x = mode.from_tensor(example)
    try:
        with mode:
            arguments = KERNEL_ARGUMENTS.get(operator, lambda x: [(x,)])(x)[position]
        if fast:
            result = dispatch(lambda mode, *rest: mode.dispatch(*rest), mode, operator, (), arguments, {})
        else:
            result = mode.dispatch(operator, (), arguments, {})
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        return type(error)
    memory = [result.untyped_storage()._cdata == tensor.untyped_storage()._cdata for tensor in arguments[:1]]
    return _description(result), result.storage_offset(), memory, result is arguments[0], result.requires_grad


def test_contiguous_clone_of_any_layout(mode: FakeTensorMode) -> None:
    x = _image(mode, 2).transpose(1, 3)
    clone = RULES[aten.clone.default](mode, x, memory_format=torch.contiguous_format)
    assert _description(clone) == _description(
        mode.dispatch(aten.clone.default, (), (x,), {"memory_format": torch.contiguous_format})
    )
