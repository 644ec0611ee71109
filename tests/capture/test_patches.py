"""Patches of torch apply to the exporting thread only, and only during the export."""

from __future__ import annotations

import importlib
import math
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributions import Distribution, Normal
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.functional import scaled_dot_product_attention
from torch.onnx import TrainingMode
from torch.utils import _pytree as pytree

import fxonnx
from fxonnx._capture.patches import (
    CAPTURE_PATCHES,
    LOADING_PATCHES,
    REWRITING_PATCHES,
    SEED_PATCHES,
    VALUE_PATCHES,
    Patch,
    capture_patches,
    loading_patches,
    tracing_patches,
)
from fxonnx._capture.patches.libraries import TRANSFORMERS_VISION_PATCHES
from fxonnx.errors import CaptureError

from ..functions import Function
from ..models.torchvision_shim import import_torchvision

import_torchvision()

# Some of their functions are replaced.
import torchvision.models.detection  # noqa: E402, F401
import transformers.masking_utils  # noqa: E402
import transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer  # noqa: E402
import transformers.models.fsmt.modeling_fsmt  # noqa: E402
import transformers.models.led.modeling_led  # noqa: E402
import transformers.models.longformer.modeling_longformer  # noqa: E402
import transformers.models.udop.modeling_udop  # noqa: E402
import transformers.models.vilt.modeling_vilt  # noqa: E402, F401

for _patch in TRANSFORMERS_VISION_PATCHES:
    # Some versions of transformers do not have all vision towers.
    with suppress(ImportError):
        importlib.import_module(_patch.target.partition(":")[0])

WAIT = 20.0
"""Seconds until a test that waits for a thread gives up."""

ALL_PATCHES = CAPTURE_PATCHES + VALUE_PATCHES + REWRITING_PATCHES + SEED_PATCHES + LOADING_PATCHES
ABSENT = [
    *(each for each in TRANSFORMERS_VISION_PATCHES if each.target.partition(":")[0] not in sys.modules),
    *(each for each in ALL_PATCHES if not each._is_in_version),
]


class Doubled(torch.autograd.Function):
    """Twice the input, with a gradient that torch cannot derive itself, and a symbolic."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 100

    @staticmethod
    def symbolic(g: Any, x: Any) -> Any:
        return g.op("Add", x, x)


class Calling(nn.Module):
    """A model that calls a function in the middle of ``forward`` while it is captured."""

    def __init__(self, function: Callable[[], Any], factor: float = 3.0) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.function = function
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if torch.compiler.is_exporting():
            self.function()
        return Doubled.apply(x) * self.factor


class Raising(nn.Module):
    """A model that cannot be exported: it branches inside of ``try``."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            if x.sum() > 0:
                return x + 1
            return x - 1
        finally:
            pass


def content() -> dict[str, Any]:
    """Target to current value, for every row of the tables."""
    return {patch.target: patch.read() for patch in ALL_PATCHES if patch.applies}


def assert_untouched(before: dict[str, Any]) -> None:
    after = content()
    assert [target for target in before if after[target] is not before[target]] == []


def in_thread(function: Callable[[], Any]) -> Any:
    """Result of a function in a new thread."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread of the test
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()
    if errors:
        raise errors[0]
    return results[0]


@pytest.mark.parametrize("patch", [pytest.param(each, id=each.target) for each in ALL_PATCHES if each not in ABSENT])
def test_every_target_exists(patch: Patch) -> None:
    assert patch.applies
    before = patch.read()
    assert patch.replaced() is not before
    assert patch.read() is before
    assert patch.why


def test_targets_are_unique() -> None:
    targets = [patch.target for patch in CAPTURE_PATCHES + LOADING_PATCHES]
    assert len(set(targets)) == len(targets)


def test_all_patches_are_applied_during_an_export() -> None:
    before, during = content(), {}
    fxonnx.export(Calling(lambda: during.update(content())).eval(), (torch.randn(2, 4),))
    present = [patch.target for patch in CAPTURE_PATCHES if patch not in ABSENT]
    assert [target for target in present if during[target] is before[target]] == []
    assert_untouched(before)


def test_no_patch_remains_after_a_failure() -> None:
    before = content()
    with pytest.raises(CaptureError, match=r"asks for the value of a tensor"):
        fxonnx.export(Raising().eval(), (torch.randn(2, 4),))
    assert_untouched(before)


def test_patches_apply_to_their_torch_versions() -> None:
    def row(**options: Any) -> Patch:
        return Patch("torch:nothing", lambda original: None, "", **options)

    assert row().applies
    assert row(since="2.0").applies
    assert not row(since="99.0").applies
    assert row(before="99.0").applies
    assert not row(before="2.0").applies
    assert not row(optional=True, since="99.0").applies
    assert not Patch("no.such.module:function", lambda original: None, "", optional=True).applies
    with pytest.raises(AttributeError, match="nothing"):
        row().replaced()


def _trained() -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for _ in range(3):
        optimizer.zero_grad()
        Doubled.apply(model(torch.ones(2, 4))).sum().backward()
        optimizer.step()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*gradients, *(parameter.detach() for parameter in model.parameters())]


def _children() -> list[bool]:
    inner = nn.Linear(2, 2)
    outer = nn.Sequential(inner)
    outer.same = outer[0]
    outer(torch.ones(1, 2))
    return [outer[0] is inner, outer.same is inner, type(outer.get_submodule("0")) is nn.Linear]


@torch.jit.script
def _scripted(x: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        return x + 1
    return x - 1


def _fake_sizes() -> list[Any]:
    environment = ShapeEnv()
    with FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True) as mode:
        x = mode.from_tensor(torch.randn(5, 1, 3), static_shapes=False)
        long = bool(x.shape[0] > 3)
        pooled = torch.nn.functional.max_pool1d(x.permute(1, 2, 0), 2, ceil_mode=True)
    return [long, [str(guard.expr) for guard in environment.guards], str(pooled.shape)]


def _recurrent() -> list[Any]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return [tuple(nn.LSTM(3, 4)(torch.randn(5, 2, 3))[0].shape)]


def _unvalidated() -> str:
    with pytest.raises(ValueError, match="scale") as raised:
        Normal(torch.zeros(1), torch.tensor([-1.0]))
    return str(raised.value)


def _compiled() -> Tensor:
    validates = Distribution._validate_args
    try:
        return torch.compile(lambda x: x * 2 + x.shape[0], backend="eager", dynamic=True)(torch.ones(2, 3))
    finally:
        # The first compilation disables validation permanently.
        if Distribution._validate_args is not validates:
            Distribution.set_default_validate_args(validates)


ACTIVITIES: dict[str, Callable[[], Any]] = {
    "training": _trained,
    "modules": _children,
    "scripted": lambda: [_scripted(torch.ones(2)), type(_scripted)],
    "fake": _fake_sizes,
    "recurrent": _recurrent,
    "validation": _unvalidated,
    "flags": lambda: [torch.compiler.is_compiling(), torch.compiler.is_exporting(), fxonnx.is_in_onnx_export()],
    "builtins": lambda: [type(math.pow(2, 3)), max(torch.tensor(1), torch.tensor(2)), min([3, 1])],
    "index": lambda: list(range(torch.tensor(3))),
    "compiled": _compiled,
    "causal": lambda: nn.functional.scaled_dot_product_attention(*(torch.ones(1, 2, 3),) * 3, is_causal=True),
}


@pytest.mark.parametrize("activity", ACTIVITIES)
def test_another_thread_sees_unpatched_torch(activity: str) -> None:
    function = ACTIVITIES[activity]
    expected = _plain(function())
    seen: list[Any] = []
    program = fxonnx.export(Calling(lambda: seen.append(in_thread(function))).eval(), (torch.randn(2, 4),))
    assert [_plain(value) for value in seen] == [expected]
    program.verify((torch.randn(2, 4),))


@pytest.mark.parametrize("activity", ACTIVITIES)
def test_another_thread_while_operators_are_decomposed(activity: str) -> None:
    function = ACTIVITIES[activity]
    expected = _plain(function())
    seen: list[Any] = []

    def decomposition(x: Tensor) -> Tensor:
        seen.append(in_thread(function))
        return x * 2

    with tracing_patches():
        make_fx(decomposition, tracing_mode="fake", pre_dispatch=True)(torch.randn(2, 4))
    assert [_plain(value) for value in seen] == [expected]


def _plain(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.tolist(), value)


def test_overlapping_exports_take_turns() -> None:
    before = content()
    first_inside, second_inside = threading.Event(), threading.Event()
    programs: dict[str, Any] = {}
    x = torch.randn(2, 4)

    def first() -> None:
        first_inside.set()
        # Without the lock, the second capture would begin now, and end after this one.
        assert not second_inside.wait(0.5)

    def export_first() -> None:
        programs["first"] = fxonnx.export(Calling(first, 3.0).eval(), (x,))

    def export_second() -> None:
        assert first_inside.wait(WAIT)
        programs["second"] = fxonnx.export(Calling(second_inside.set, 5.0).eval(), (x,))

    other = threading.Thread(target=export_second)
    other.start()
    export_first()
    other.join(WAIT)
    assert sorted(programs) == ["first", "second"]
    for program in programs.values():
        program.verify((torch.randn(2, 4),))
    assert_untouched(before)


class Slow(nn.Module):
    """Its calls by ``verify`` overlap in two threads unless they take turns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            time.sleep(0.2)
        return x + 1


def test_verifications_in_threads_do_not_affect_later_captures() -> None:
    program = fxonnx.export(Slow().eval(), (torch.randn(2, 4),))

    def verify(delay: float) -> None:
        time.sleep(delay)
        program.verify((torch.randn(2, 4),))

    threads = [threading.Thread(target=verify, args=(delay,)) for delay in (0.0, 0.1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)

    model = Function(lambda x: torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 3, (x,))).eval()
    later = fxonnx.export(model, (torch.randn(2, 3),))
    for sign in (1.0, -1.0):
        x = torch.full((2, 3), sign)
        torch.testing.assert_close(later(x)[0], model(x))


def test_tables_of_functions_are_cleared_after_overlapping_captures() -> None:
    """A capture that waits for another one must not take the tables of that one's replacements for its own."""
    table = torch.utils._device._device_constructors
    table.cache_clear()
    waiting = threading.Event()

    def second() -> None:
        waiting.set()
        with capture_patches():
            table()

    other = threading.Thread(target=second)
    with capture_patches():
        table()
        other.start()
        assert waiting.wait(WAIT)
        # Time to arrive at the lock.
        other.join(0.2)
    other.join(WAIT)
    assert torch.linspace in table()


def test_a_failing_export_releases_the_lock() -> None:
    with pytest.raises(CaptureError, match=r"asks for the value of a tensor"):
        fxonnx.export(Raising().eval(), (torch.randn(2, 4),))
    x = torch.randn(2, 4)
    in_thread(lambda: fxonnx.export(Calling(lambda: None).eval(), (x,))).verify((x,))


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "lstm": (nn.LSTM(3, 4, batch_first=True), (2, 5, 3)),
    "convolution": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2, ceil_mode=True), nn.Flatten()), (2, 3, 9, 9)),
    "function": (Calling(lambda: None), (2, 4)),
    "attention": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
}


def test_threads_that_export_in_a_loop() -> None:
    before = content()
    together = threading.Barrier(2)
    errors: list[BaseException] = []

    def run(names: list[str]) -> None:
        try:
            together.wait(WAIT)
            for name in names:
                model, shape = MODELS[name]
                program = fxonnx.export(model.eval(), (torch.randn(*shape),), dynamic_shapes=({0: "batch"},))
                program.verify((torch.randn(3, *shape[1:]),))
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread of the test
            errors.append(error)

    # The threads never export the same model at the same time, since an export swaps the weights of its model.
    orders = (["lstm", "convolution"] * 2, ["function", "attention"] * 2)
    threads = [threading.Thread(target=run, args=(names,)) for names in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(6 * WAIT)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
    assert_untouched(before)


def test_one_model_exported_by_two_threads_in_two_modes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    x = torch.randn(3, 4)
    together = threading.Barrier(2)
    operators: dict[str, set[str]] = {}

    def run(mode: TrainingMode) -> None:
        together.wait(WAIT)
        for _ in range(3):
            program = fxonnx.torch_onnx_export(model, (x,), training=mode, state="outputs")
            operators.setdefault(mode.name, set()).update(node.op_type for node in program.model.graph)

    threads = [threading.Thread(target=run, args=(mode,)) for mode in (TrainingMode.EVAL, TrainingMode.TRAINING)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(6 * WAIT)
    assert "Dropout" in operators["TRAINING"]
    assert operators["EVAL"] <= {"Gemm", "MatMul", "Add", "Mul", "BatchNormalization"}
    assert all(module.training for module in model.modules())


def test_byte_code_is_traced_through_the_patches() -> None:
    class Policy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            attention = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
            return Normal(attention, torch.ones_like(attention)).mean

    x = torch.randn(1, 3, 4)
    with capture_patches(strict=True):
        program = torch.export.export(Policy(), (x,), strict=True)
    torch.testing.assert_close(program.module()(x), Policy()(x))


def test_other_threads_may_unpickle_during_loading(tmp_path: Path) -> None:
    before = content()
    torch.save({"when": date(2020, 1, 2)}, tmp_path / "objects.pt")

    def load() -> Any:
        return torch.load(tmp_path / "objects.pt", weights_only=False)

    with loading_patches():
        with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
            load()
        assert in_thread(load) == {"when": date(2020, 1, 2)}
        if torch.__version__ >= "2.13":
            archive = torch.export.pt2_archive._package.pickle
            with pytest.raises(pickle.UnpicklingError, match="it contains pickled Python objects"):
                archive.loads(pickle.dumps(1))
            assert in_thread(lambda: archive.loads(archive.dumps(1))) == 1
    assert_untouched(before)


class ByName(nn.Module):
    """A model whose module imports a function by its name, and passes a condition on a size to it."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self.elsewhere: list[object] = []

    def forward(self, q: Tensor, mask: Tensor | None = None) -> Tensor:
        self.elsewhere.append(in_thread(lambda: scaled_dot_product_attention(ONES, ONES, ONES, is_causal=True)))
        if self.fails:
            raise ValueError("no such model")
        return scaled_dot_product_attention(q, q, q, mask, is_causal=mask is None and q.shape[-2] > 1)


ONES = torch.ones(1, 1, 2, 4)


@pytest.mark.filterwarnings("ignore:The tensor attribute", "ignore:forward changes")
@pytest.mark.parametrize("fails", [False, True])
def test_functions_that_are_imported_by_name(fails: bool) -> None:
    model = ByName().eval()
    model.fails = fails
    before = scaled_dot_product_attention
    if fails:
        with pytest.raises(CaptureError, match="no such model"):
            fxonnx.export(model, (torch.rand(1, 2, 5, 8),), dynamic_shapes=({2: "n"},))
    else:
        program = fxonnx.export(model, (torch.rand(1, 2, 5, 8),), dynamic_shapes=({2: "n"},))
        for q in (torch.rand(1, 2, 2, 8), torch.rand(1, 2, 9, 8)):
            torch.testing.assert_close(program(q)[0], model(q))
    assert all(type(value) is Tensor for value in model.elsewhere)
    assert scaled_dot_product_attention is before is nn.functional.scaled_dot_product_attention


def test_no_replaced_function_outlives_an_export() -> None:
    """TorchDynamo traces the branches of cond during the export; it and torch cache tables of functions then."""
    script = """
import gc, types
import torch, fxonnx

class Branch(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

class Rows(torch.nn.Module):
    def forward(self, x):
        return torch.vmap(lambda row: row.sum())(x)

fxonnx.export(Branch().eval(), (torch.ones(2, 3),))
gc.collect()
functions = [thing for thing in gc.get_objects() if isinstance(thing, types.FunctionType)]
assert not [function for function in functions if function.__qualname__ == "in_tracing_thread.<locals>.patched"]
torch.export.export(Rows(), (torch.ones(2, 3),), strict=True)
with torch.device("meta"):
    assert torch.linspace(0, 1, 3).is_meta
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
