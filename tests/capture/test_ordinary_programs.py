"""Ordinary programs with caches, attributes, handlers and identities in Python: each is right from its file."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import logging
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fxonnx
from tests.functions import Function, VariadicFunction
from tests.saved import run_from_file

_LOG = logging.getLogger(__name__)
N = ({0: "n"},)
NN = ({0: "n"}, {0: "n"})


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _index(*shape: int, below: int) -> torch.Tensor:
    return torch.randint(0, below, shape)


@functools.cache
def _positions(n: int) -> torch.Tensor:
    return torch.arange(n).float().sqrt()


@functools.cache
def _angles(shape: tuple[int, ...], dtype: torch.dtype, *, base: float = 100.0) -> torch.Tensor:
    frequencies = torch.exp(torch.arange(shape[1], dtype=dtype) / -base)
    return (torch.arange(shape[0], dtype=dtype)[:, None] * frequencies).sin()


@functools.lru_cache
def _half(n: int) -> int:
    return n // 2


class _Scale:
    """A callable object, whose cache has no name."""

    def __call__(self, n: int) -> torch.Tensor:
        return torch.arange(n) * 0.5


_scaled = functools.lru_cache(_Scale())
_raised = functools.lru_cache(functools.partial(torch.arange, 2))


class _Grid(nn.Module):
    @functools.lru_cache(maxsize=4)  # noqa: B019 - as models have it
    def grid(self, h: int, w: int) -> torch.Tensor:
        return torch.stack(torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")).sum(0)

    @staticmethod
    @functools.lru_cache
    def ones(n: int) -> torch.Tensor:
        return torch.ones(n).cumsum(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.grid(x.shape[-2], x.shape[-1]) * self.ones(x.shape[-1])


class _OwnCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = functools.lru_cache(maxsize=2)(_arange)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.positions(x.shape[0])


def _arange(n: int) -> torch.Tensor:
    return torch.arange(n).float()


class _Marked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("shift", torch.ones(3))
        weight: Any = self.layer.weight
        weight.scale, weight.tag, weight.offset = 2.0, "scaled", torch.full((3,), 0.5)
        self.shift.kind = "add"  # type: ignore[union-attr]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: Any = self.layer.weight
        y = self.layer(x) + weight.offset
        if weight.tag == "scaled" and hasattr(weight, "scale"):
            y = y * weight.scale
        for parameter in self.parameters():
            if getattr(parameter, "tag", None) == "scaled":
                y = y @ parameter
        shift: Any = self.shift
        return y + shift if shift.kind == "add" else y * shift


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv1d(3, 3, 3), nn.BatchNorm1d(3)
        self.attention = nn.MultiheadAttention(4, 2)
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        y = self.norm(self.layer(x))
        return self.attention(y, y, y)[0]


def _in_inference_mode(make: Callable[[], Any]) -> Any:
    with torch.inference_mode():
        return make()


def _into_empty(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    result = torch.empty(0)
    torch.add(x, y, out=result)
    torch.sub(result, 2 * y, out=result)
    return result * 2


def _into_wider_type(x: torch.Tensor) -> torch.Tensor:
    result = torch.empty(0, dtype=torch.float64)
    torch.sum(x, 1, out=result)
    return result


def _into_resized(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(0).resize_(x.shape).copy_(x)


def _into_view_kept(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    result = torch.cat([x, y], out=torch.Tensor())
    result[0] = 1
    return result


class _Scratch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("result", torch.empty(0), persistent=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch.add(x, y, out=self.result)  # type: ignore[arg-type]
        return self.result * 2  # type: ignore[operator]


def _or_cat(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 2 if x is y else x + y


def _logged(x: torch.Tensor) -> torch.Tensor:
    _LOG.info("shape %s, %d rows", x.shape, x.dim())
    _LOG.debug(f"{x.shape[0]} rows of {x.dtype} on {x.device}")
    assert x.shape[1] == 3, f"wrong shape {x.shape}"
    if x.dim() != 2:
        raise ValueError(f"expected a matrix, got {tuple(x.shape)}")
    return x * 2


def _handled(x: torch.Tensor) -> torch.Tensor:
    try:
        import flash_attention_that_no_one_has as fast
    except ImportError:
        fast = None
    with contextlib.suppress(KeyError):
        x = x * {}["scale"]
    try:
        _, time, _ = x.shape
    except ValueError:
        _, time = x.shape
    try:
        y = torch.ops.no_such_library.multiply(x)
    except AttributeError:
        y = x * time
    return y if fast is None else x


def _asked(x: torch.Tensor) -> torch.Tensor:
    if isinstance(x, torch.Tensor) and type(x) is torch.Tensor and x.dtype is torch.float32:
        x = x + 1
    if isinstance(x.shape[0], int) and isinstance(x.shape, tuple) and hasattr(x, "detach"):
        x = x * 2
    kept = {id(one): one * 3 for one in (x, x + 1, x)}
    match tuple(x.shape):
        case (_, 3):
            x = x - 1
    return x + sum(kept.values())


class _Counting(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen, self.random = nn.Linear(3, 3), [], random.Random(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).calls += 1
        self.seen.append(x.shape)
        self.last = x.detach()
        if self.training and (random.random() < 0.5 or np.random.rand() < 0.5 or self.random.random() < 0.5):
            x = x.flip(0)
        if self.calls > 10**6:
            warnings.warn(f"{self.calls} calls", stacklevel=2)
        y = self.layer(x)
        return copy.deepcopy(nn.ReLU())(y.detach() if torch.is_grad_enabled() else y)


class _Created(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale: nn.Parameter | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scale is None:
            self.scale = nn.Parameter(torch.full((x.shape[1],), 2.0))
            self.norm = nn.LayerNorm(x.shape[1])
            self.register_buffer("shift", torch.ones(x.shape[1]))
        return self.norm(x * self.scale) + self.shift


_same = torch.randn(4, 3)
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], Any]] = {
    "cached table": (lambda: Function(lambda x: x + _positions(x.shape[0])), ((_x(5),), (_x(9),), (_x(1),)), N),
    "cached table, static": (lambda: Function(lambda x: x + _positions(x.shape[0])), ((_x(5),), (_x(5),)), None),
    "cached by shape": (lambda: Function(lambda x: x + _angles(x.shape, dtype=x.dtype)), ((_x(5, 8),), (_x(9, 8),)), N),
    "cached number": (lambda: Function(lambda x: x[: _half(len(x))] * 2), ((_x(6),), (_x(9),)), N),
    "cached methods": (_Grid, ((_x(1, 4, 6),), (_x(1, 7, 3),)), ({1: "h", 2: "w"},)),
    "cached object": (lambda: Function(lambda x: x + _scaled(x.shape[0]) + _scaled(1)), ((_x(5),), (_x(9),)), N),
    "cached partial function": (lambda: Function(lambda x: x + _raised(x.shape[0] + 2)), ((_x(5),), (_x(9),)), N),
    "cache of the instance": (_OwnCache, ((_x(4),), (_x(7),)), N),
    "vmap over indexing": (
        lambda: Function(lambda x, i: torch.vmap(lambda row, j: row[j])(x, i)),
        ((_x(4, 5), _index(4, below=5)), (_x(6, 5), _index(6, below=5) - 5)),
        NN,
    ),
    "vmap over an index after others": (
        lambda: Function(lambda x, i: torch.vmap(lambda row, j: row[1:, None, ..., j])(x, i)),
        ((_x(4, 3, 5), _index(4, below=5)), (_x(6, 3, 5), _index(6, below=5))),
        NN,
    ),
    "vmap over two indices": (
        lambda: VariadicFunction(lambda x, i, j: torch.vmap(lambda row, a, b: row[a, [0, 1], b])(x, i, j)),
        (
            (_x(4, 3, 2, 5), _index(4, below=3), _index(4, below=5)),
            (_x(6, 3, 2, 5), _index(6, below=3), _index(6, below=5)),
        ),
        ((*NN, {0: "n"}),),
    ),
    "vmap in vmap over indexing": (
        lambda: Function(lambda x, i: torch.vmap(torch.vmap(lambda row, j: row[j]))(x, i)),
        ((_x(4, 3, 5), _index(4, 3, below=5)), (_x(6, 3, 5), _index(6, 3, below=5))),
        NN,
    ),
    "vmap over the index alone": (
        lambda: Function(lambda x, i: torch.vmap(lambda row, j: row[j], in_dims=(None, 0))(x, i)),
        ((_x(4, 5), _index(3, below=4)), (_x(6, 5), _index(3, below=6))),
        ({0: "n"}, {}),
    ),
    "vmap over an argmax": (
        lambda: Function(lambda x: torch.vmap(lambda row: row[row.argmax()] - row)(x)),
        ((_x(4, 5),), (_x(6, 5),)),
        N,
    ),
    "attributes of parameters": (_Marked, ((_x(4, 3),), (_x(7, 3),)), N),
    "weights that the first call creates": (_Created, ((_x(4, 3),), (_x(7, 3),)), N),
    "weights of inference mode": (lambda: _in_inference_mode(_Net), ((_x(4, 3, 6),), (_x(7, 3, 6),)), N),
    "inputs and weights of inference mode": (
        lambda: _in_inference_mode(_Net),
        ((_in_inference_mode(lambda: _x(4, 3, 6)),), (_x(4, 3, 6),)),
        None,
    ),
    "NumPy, static": (
        lambda: Function(
            lambda x: (x + torch.from_numpy(np.arange(x.shape[1]))) / np.sqrt(x.shape[0]) + np.zeros(x.shape, "float32")
        ),
        ((_x(4, 3),), (_x(4, 3),)),
        None,
    ),
    "NumPy": (
        lambda: Function(
            lambda x: x.reshape(np.prod(x.shape)) / np.sqrt(x.shape[-1]) + float(np.array(x.shape).prod())
        ),
        ((_x(4, 3),), (_x(7, 3),)),
        N,
    ),
    "the same tensor twice": (lambda: Function(_or_cat), ((_same, _same), (_same + 1,) * 2), None),
    "the same tensor twice, dynamic": (lambda: Function(_or_cat), ((_same, _same), (_x(7, 3),) * 2), NN),
    "two tensors that may be one": (lambda: Function(_or_cat), ((_same, _same + 1), (_x(7, 3), _x(7, 3))), NN),
    "out of no elements": (lambda: Function(_into_empty), ((_x(4, 3), _x(4, 3)), (_x(7, 3), _x(7, 3))), NN),
    "out of no elements, static": (lambda: Function(_into_empty), ((_x(4, 3), _x(4, 3)), (_x(4, 3), _x(4, 3))), None),
    "out of another type": (lambda: Function(_into_wider_type), ((_x(4, 3),), (_x(7, 3),)), N),
    "out that is written again": (lambda: Function(_into_view_kept), ((_x(4, 3), _x(4, 3)), (_x(7, 3), _x(7, 3))), NN),
    "resize of no elements": (lambda: Function(_into_resized), ((_x(4, 3),), (_x(7, 3),)), N),
    "logged sizes": (lambda: Function(_logged), ((_x(4, 3),), (_x(7, 3),)), N),
    "handled errors": (lambda: Function(_handled), ((_x(4, 3),), (_x(7, 3),)), N),
    "types and identities": (lambda: Function(_asked), ((_x(4, 3),), (_x(7, 3),)), N),
    "counters, and random numbers in training": (_Counting, ((_x(4, 3),), (_x(7, 3),)), N),
}


def _outputs(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_ordinary_program_is_right_from_its_file(name: str) -> None:
    make, calls, dynamic_shapes = PROGRAMS[name]
    model = make().eval()
    program = fxonnx.export(model, calls[0], dynamic_shapes=dynamic_shapes)
    run_from_file(program)
    for call in calls:
        with torch.no_grad():
            expected = _outputs(model(*copy.deepcopy(call)))
        for one, other in zip(_outputs(program(*call)), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_caches_keep_their_functions_and_no_traced_results() -> None:
    model, before = _Grid().eval(), (vars(_Grid)["grid"], vars(_Grid)["ones"], _positions)
    _positions.cache_clear()
    fxonnx.export(model, (_x(1, 4, 6),), dynamic_shapes=({1: "h", 2: "w"},))
    fxonnx.export(Function(lambda x: x + _positions(x.shape[0])), (_x(5),), dynamic_shapes=N)
    assert before == (vars(_Grid)["grid"], vars(_Grid)["ones"], _positions)
    for n in (1, 2, 5):
        assert type(_positions(n)) is torch.Tensor
        assert _positions(n).tolist() == torch.arange(n).sqrt().tolist()


@functools.lru_cache
def _at_seven(n: int) -> float:
    return 3.0 if str(n) == "7" else 2.0


def test_a_cached_function_of_the_text_of_a_size_is_refused() -> None:
    with pytest.raises(fxonnx.CaptureError, match=r"does not compute(?s:.*)n = 7(?s:.*)_at_seven without its cache"):
        fxonnx.export(Function(lambda x: x * _at_seven(x.shape[0])), (_x(4),), dynamic_shapes=N)


@functools.lru_cache
def _noise(n: int) -> torch.Tensor:
    return torch.randn(n)


def test_a_cache_of_random_values_is_refused() -> None:
    model = Function(lambda x: x + _noise(x.shape[0]))
    for dynamic_shapes in (N, None):
        with pytest.raises(
            fxonnx.CaptureError, match=r"cache of the function _noise keeps random values(?s:.*)draw them"
        ):
            fxonnx.export(model, (_x(4),), dynamic_shapes=dynamic_shapes)
    _noise(4)  # after which it is a constant
    program = fxonnx.export(model, (_x(4),))
    assert torch.equal(program(torch.zeros(4))[0], _noise(4))


def test_a_fallback_for_sizes_that_a_dictionary_does_not_have_is_compared_at_these() -> None:
    def right(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * {4: 2.0, 8: 2.0}[x.shape[0]]
        except (KeyError, TypeError):
            return x * 2

    def wrong(x: torch.Tensor) -> torch.Tensor:
        try:
            scale = {4: 2.0, 8: 3.0}[x.shape[0]]
        except (KeyError, TypeError):
            scale = 2.0
        return x * scale

    program = fxonnx.export(Function(right), (_x(4),), dynamic_shapes=N)
    (doubled,) = program(torch.ones(8))
    assert torch.equal(doubled, torch.full((8,), 2.0))
    with pytest.raises(fxonnx.CaptureError, match=r"does not compute(?s:.*)n = 8(?s:.*)unhashable size"):
        fxonnx.export(Function(wrong), (_x(4),), dynamic_shapes=N)


def test_weights_of_inference_mode_are_the_model_s_own_after_the_export() -> None:
    model = _in_inference_mode(_Net).eval()
    model.attention.out_proj.bias = model.attention.in_proj_bias
    before = {name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    with pytest.raises(fxonnx.CaptureError):
        fxonnx.export(model, (_x(4, 9, 6),))
    fxonnx.export(model.norm, (_x(4, 3, 6),))
    assert before == {name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    assert all(tensor.is_inference() for tensor in model.parameters())


class _CountedUses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.weight.uses = 0  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: Any = self.weight
        weight.uses += 1
        return x + weight * weight.uses


def test_a_changed_attribute_of_a_parameter_is_reported_and_restored() -> None:
    model: Any = _CountedUses().eval()
    with pytest.warns(UserWarning, match=r"'weight\.uses': 0 becomes 1 at .*in forward: weight\.uses \+= 1"):
        fxonnx.export(model, (_x(4, 3),), dynamic_shapes=N)
    assert vars(model.weight) == {"uses": 0}


def test_a_resized_buffer_is_a_lost_update_and_no_input() -> None:
    inputs = (_x(4, 3), _x(4, 3))
    with pytest.warns(UserWarning, match=r"forward writes to 'result'(?s:.*)test_ordinary_programs\.py"):
        program = fxonnx.export(_Scratch().eval(), inputs, dynamic_shapes=NN)
    x = _x(7, 3)
    assert torch.equal(program(x, x)[0], 4 * x)
    with pytest.raises(
        fxonnx.StateError, match=r"forward resizes 'result', and an input .* has one shape\nhint: create"
    ):
        fxonnx.export(_Scratch().eval(), inputs, dynamic_shapes=NN, state="io")
    program = fxonnx.export(_Scratch().eval(), inputs, dynamic_shapes=NN, state="outputs")
    assert torch.equal(program(x, x)[1], 2 * x)


_CACHED = """
import functools
import importlib

@functools.lru_cache(3001)
def scale(n):
    return 2.0

def scaled(x):
    try:
        return x * {4: 2.0, 9: 2.0}[x.shape[0]]
    except (KeyError, TypeError):
        return x * scale(3)
"""


def test_the_capacity_of_a_cache_is_no_size_to_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of a file are sizes for which its code may differ, but for those that say how many results are kept."""
    (tmp_path / "cached_scales.py").write_text(_CACHED)
    monkeypatch.syspath_prepend(tmp_path)
    scaled = importlib.import_module("cached_scales").scaled
    program = fxonnx.export(Function(scaled), (_x(4),), dynamic_shapes=N)
    runs = {run.inputs for run in program.record.proof.runs}
    assert "n = 9" in runs
    assert "n = 3001" not in runs
