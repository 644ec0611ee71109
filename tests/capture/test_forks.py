"""Processes that are forked while another thread exports: they export themselves, as a new process does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import gc, io, os, signal, sys, threading, time, warnings
import torch
import fxonnx

warnings.simplefilter("ignore")
x = torch.rand(3, 8)
asked = []

class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(6))
        self.register_buffer("h", torch.zeros(8))

    def forward(self, x):
        if not torch.compiler.is_compiling():
            asked.append(1)
        for layer in self.layers:
            x = torch.relu(layer(x)) * int(x.shape[1])
            if x.sum() > 0:
                x = x + 1
        self.h += x.mean(0)
        return x

def exported(model):
    file = io.BytesIO()
    fxonnx.export(model, (x,), file, dynamic_shapes=({0: "n"},))
    return file.getvalue()

model = Layers().eval()
expected, before = exported(model), gc.get_threshold()
start = time.perf_counter()
exported(model)
seconds = time.perf_counter() - start

def child():
    # The model that the other thread exports, whose export this process does not continue.
    asked.clear()
    assert not any(isinstance(one, torch._subclasses.FakeTensor) for one in (*model.parameters(), *model.buffers()))
    assert not torch.compiler.is_compiling() and gc.get_threshold() == before
    y = model(x)
    assert asked and type(y) is torch.Tensor
    model.h.zero_()
    assert exported(model) == expected, "other bytes"

def forked(moment):
    thread = threading.Thread(target=exported, args=(model,))
    thread.start()
    time.sleep(seconds * moment)
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # a process that hangs
        code = 1
        try:
            child()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code) if code == 0 else (__import__("traceback").print_exc(), os._exit(code))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 0, f"exit code {code} at {moment}"
    thread.join()

for index in range(MOMENTS):
    forked((index + 0.5) / MOMENTS)
assert exported(model) == expected
"""

IN_FORWARD = """
class Forking(torch.nn.Module):
    def forward(self, x):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        return torch.relu(x) * int(x.shape[0])

assert exported(Forking().eval()) == exported(Forking().eval())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_process_that_is_forked_during_an_export(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(SCRIPT.replace("MOMENTS", "4") + IN_FORWARD)
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
