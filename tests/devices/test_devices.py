"""Models on a GPU, one that is emulated or the machine's, and exports with another default device than the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fxonnx
from fxonnx._program.verification_inputs import may_index_on_gpu
from fxonnx.errors import ArgumentError

from .cases import CASES

_ROOT = Path(__file__).parents[2]
_EMULATED = [name for name, case in CASES.items() if not case.needs_values]


@pytest.fixture(scope="module")
def emulated() -> Mapping[str, str]:
    """The error of each case on an emulated GPU, "" for none; a process of its own, since torch has one such device."""
    command = [sys.executable, "-m", "tests.devices.emulated", *_EMULATED]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


def test_an_emulated_gpu(emulated: Mapping[str, str]) -> None:
    assert [*emulated] == _EMULATED
    assert {name: error for name, error in emulated.items() if error} == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CASES)
def test_a_gpu(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = case.make().eval().cuda()
    x, second = case.example.cuda(), case.second.cuda()
    program = fxonnx.export(model, (x,), dynamic_shapes=(case.axes,), verify=True)
    program.save(tmp_path / "gpu.onnx")
    assert all(tensor.is_cuda for tensor in model.state_dict().values())
    with torch.no_grad():
        for inputs in (x, second):
            expected = pytree.tree_leaves(model(inputs))
            torch.testing.assert_close(
                pytree.tree_leaves(program(inputs)), [one.cpu() for one in expected], rtol=1e-3, atol=1e-4
            )
    if name not in ("through_the_cpu", "script"):
        fxonnx.export(model.cpu(), (case.example,), "cpu.onnx", dynamic_shapes=(case.axes,)).save(tmp_path / "cpu.onnx")
        assert (tmp_path / "cpu.onnx").read_bytes() == (tmp_path / "gpu.onnx").read_bytes()


def test_references_are_not_rounded_to_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    model = nn.Linear(2, 2).eval()
    program = fxonnx.export(model, (torch.ones(1, 2),))
    found: list[str] = []
    model.register_forward_pre_hook(lambda *_: found.append(torch.backends.cudnn.conv.fp32_precision))
    assert program.verify(model=model)
    assert {*found} == {"ieee"}
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"
    assert torch.backends.cudnn.allow_tf32


def test_indices_of_a_gpu_stay_within_range() -> None:
    ids = torch.empty(3, dtype=torch.int64, device="meta")
    with mock.patch.object(torch.Tensor, "device", torch.device("cuda", 0)):
        assert may_index_on_gpu([ids])
        assert not may_index_on_gpu([torch.ones(2), torch.ones(2, dtype=torch.bool)])
    assert not may_index_on_gpu([ids, torch.ones(2, dtype=torch.int64)])


def test_weights_offloaded_by_accelerate_are_refused() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    x = torch.ones(1, 4)
    expected = model(x)
    with pytest.raises(
        ArgumentError, match=r"accelerate brings some of its weights.*\nhint: load it without device_map, or call"
    ):
        fxonnx.export(model, (x,))
    accelerate.hooks.remove_hook_from_module(model, recurse=True)
    torch.testing.assert_close(fxonnx.export(model, (x,))(x)[0], expected)


class _WithoutFactories(nn.Module):
    """All its tensors are inputs and weights, so that it runs on the CPU with any default device."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
        self.norm = nn.LayerNorm(64)
        self.linear = nn.Linear(64, 4)

    def forward(self, x: Tensor, ids: Tensor, scale: float) -> Tensor:
        y = self.layers(x).flatten(2).transpose(1, 2)
        y = self.linear(self.norm(y))
        if y.sum() > 0:
            y = y * 2
        return y[:, :4].softmax(-1) * scale + y.cumsum(1).mean(1, keepdim=True) + nn.functional.one_hot(ids, 4)[:, None]


@pytest.mark.parametrize(
    "options", [{}, {"quantize": "int8"}, {"opset_version": 11}], ids=["plain", "int8", "opset 11"]
)
def test_another_default_device(options: dict[str, object], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = _WithoutFactories().eval()
    x, ids = torch.randn(2, 3, 6, 6), torch.tensor([1, 3])
    larger, more = torch.randn(5, 3, 6, 6), torch.tensor([0, 1, 2, 3, 1])
    with torch.device("meta"):
        program = fxonnx.export(
            model,
            (x, ids, 0.5),
            dynamic_shapes=({0: "batch"}, {0: "batch"}, None),
            dynamic_scalars=["scale"],
            verify=not options.get("quantize"),
            **options,
        )
        program.save(tmp_path / "model.onnx")
        found = program(larger, more, 0.25)
        compared = program.compare((larger, more, 0.25), model=model)
    assert "disagree" not in str(compared)
    (found,) = found if isinstance(found, tuple) else (found,)
    tolerance = 0.1 if options.get("quantize") else 1e-4
    torch.testing.assert_close(found, model(larger, more, 0.25), rtol=tolerance, atol=tolerance)
    plain = fxonnx.export(
        model, (x, ids, 0.5), dynamic_shapes=({0: "batch"}, {0: "batch"}, None), dynamic_scalars=["scale"], **options
    )
    plain.save(tmp_path / "plain.onnx")
    assert (tmp_path / "plain.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()
