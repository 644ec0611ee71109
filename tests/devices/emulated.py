"""Exports from a device that this process only emulates: ``python -m tests.devices.emulated``, one line of JSON each.

Weights and inputs are fake tensors on a device whose only kernels create tensors, so that exports see a GPU wherever
they look, and fail where they read values from it or mix it with the CPU. The exported program gets the weights of the
model on the CPU, and its results are compared with that model's.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import fxonnx

from .cases import CASES, Case

DEVICE = "gpu"


class _Device:
    """The emulated device, with the fake tensor mode of one export."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.library = torch.library.Library("aten", "IMPL")
        for name, function in {
            "empty.memory_format": self.empty,
            "empty_strided": self.empty_strided,
            "zero_": lambda tensor: tensor,
            "fill_.Scalar": lambda tensor, _value: tensor,
        }.items():
            self.library.impl(name, function, "PrivateUse1")

    def empty(self, size: Any, dtype: Any = None, **_options: Any) -> Tensor:
        return FakeTensor(self.mode, torch.empty(size, dtype=dtype, device="meta"), torch.device(DEVICE, 0))

    def empty_strided(self, size: Any, stride: Any, dtype: Any = None, **_options: Any) -> Tensor:
        meta = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        return FakeTensor(self.mode, meta, torch.device(DEVICE, 0))

    def moved(self, tensor: Tensor) -> Tensor:
        """A tensor of the device in place of one on the CPU."""
        with self.mode:
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=DEVICE)
            return nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake

    def moved_model(self, model: nn.Module) -> nn.Module:
        """A copy of a model with its weights on the device."""
        model = copy.deepcopy(model)
        for module in model.modules():
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        tensors[name] = self.moved(tensor)
            if isinstance(module, nn.RNNBase):
                module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]
        return model


def check(device: _Device, case: Case) -> None:
    """Export a model from the device and compare its file with the model on the CPU at two sizes.

    Raises:
        AssertionError: If results differ.
    """
    device.mode = FakeTensorMode(allow_non_fake_inputs=True)
    model = case.make().eval()
    program = fxonnx.export(device.moved_model(model), (device.moved(case.example),), dynamic_shapes=(case.axes,))
    program.apply_weights(model.state_dict())
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.onnx"
        program.save(path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        for x in (case.example, case.second):
            found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
            with torch.no_grad():
                expected = pytree.tree_leaves(model(x))
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(torch.from_numpy(one), other, rtol=1e-4, atol=1e-5)


def main(names: Sequence[str]) -> None:
    """Check the cases of these names, by default all that need no values of the device."""
    warnings.simplefilter("ignore")
    _setup_privateuseone_for_python_backend(DEVICE)
    device = _Device()
    for name in names or [name for name, case in CASES.items() if not case.needs_values]:
        try:
            check(device, CASES[name])
            error = ""
        except Exception as found:  # noqa: BLE001 - the result of the case
            error = f"{type(found).__name__}: {found}"[:2000]
        sys.stdout.write(json.dumps([name, error]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
