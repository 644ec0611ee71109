"""Signals and forks during an export: one error with all restored, and processes that export themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SOURCE = """
import os, signal, sys, threading, warnings
import torch
import fxonnx

warnings.simplefilter("ignore")
x = torch.rand(3, 8)

class Layers(torch.nn.Module):
    def __init__(self, times=0):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(6))
        self.norm, self.times = torch.nn.LayerNorm(8), times

    def forward(self, x):
        for layer in self.layers:
            y = torch.relu(layer(x))
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)
            x = self.norm(y.reshape(x.shape[0], 2, 4).transpose(1, 2).reshape(-1, 8) + x)
            x = torch.cat([x, y])[: x.shape[0]]
        return x

def run(model):
    return fxonnx.export(model.eval(), (x,), dynamic_shapes=({0: "n"},))

def restored(before):
    assert signal.getsignal(signal.SIGINT) is before
    assert run(Layers())(torch.rand(5, 8))[0].shape == (5, 8)
"""

MOMENTS = """
import time

model = Layers()
run(model)
start = time.perf_counter()
run(model)
seconds, count = time.perf_counter() - start, TIMES

# Between the stages, the interrupt may arrive in a callback of a weak reference, whose exceptions Python drops.
dropped = []
sys.unraisablehook = lambda unraisable: dropped.append(unraisable.exc_type)

def interrupt(delay):
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGINT)

for moment in range(count):
    before = len(dropped)
    sender = threading.Thread(target=interrupt, args=(seconds * (moment + 0.5) / count,))
    try:
        sender.start()
        run(model)
        time.sleep(10)  # an export that was faster
    except KeyboardInterrupt:
        sender.join()
    else:
        if dropped[before:] != [KeyboardInterrupt] or len(dropped) > 2:
            raise SystemExit(f"no interrupt at {moment}")
restored(signal.default_int_handler)
"""

IN_FORWARD = """
try:
    run(Layers(times=1))
except KeyboardInterrupt:
    restored(signal.default_int_handler)
else:
    raise SystemExit("finished")
"""

TWICE = """
try:
    try:
        run(Layers(times=2))
    finally:
        # Both arrived: the second one while the first one was on its way.
        assert isinstance(sys.exc_info()[1].__context__, KeyboardInterrupt)
except KeyboardInterrupt:
    restored(signal.default_int_handler)
"""

OWN_HANDLER = """
received = []
def handler(number, frame):
    received.append((number, frame is not None))
signal.signal(signal.SIGINT, handler)
program = run(Layers(times=2))
assert received == [(signal.SIGINT, True)] * len(received) and len(received) >= 12, received
restored(handler)
"""

IGNORED = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
run(Layers(times=1))
restored(signal.SIG_IGN)
"""

IN_A_THREAD = """
done = []
thread = threading.Thread(target=lambda: done.append(run(Layers())))
thread.start()
thread.join()
assert len(done) == 1
restored(signal.default_int_handler)
"""


TIME_OUTS = """
import gc, time
from fxonnx._capture.patches import all_patches
from tests.untouched import State

class TimeOut(Exception):
    pass

def handler(number, frame):
    raise TimeOut("too long")

class Handling(Layers):
    # A model handles its own errors, but not a time-out.
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(8))
        self.step = 0

    def forward(self, x):
        self.step += 1
        self.h += 1
        self.layers[0].weight.data.mul_(0.5)
        try:
            x = super().forward(x)
            if x.sum() > 0:
                x = x + self.step
        except Exception:
            x = x + 1
        return x + self.h

model = Handling().eval()
run(model)
start = time.perf_counter()
expected = run(model)
seconds, count = time.perf_counter() - start, TIMES
signal.signal(signal.SIGALRM, handler)
targets = [(patch, patch.read()) for patch in all_patches() if patch.applies and patch.missing is None]
state = State(model, x)
for moment in range(count):
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds * (moment + 0.5) / count)
        run(model)
        time.sleep(10)  # an export that was faster
    except TimeOut as error:
        assert type(error) is TimeOut and error.args == ("too long",), error
        # An error that arrives after a fast export has no context at all.
        assert error.__cause__ is None and (error.__suppress_context__ or error.__context__ is None)
    else:
        raise SystemExit(f"no time-out at {moment}")
    assert not state.changes(), state.changes()
    changed = [patch.target for patch, value in targets if patch.read() is not value]
    assert not changed, changed
    assert signal.getsignal(signal.SIGALRM) is handler and signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert run(model).model_proto.SerializeToString() == expected.model_proto.SerializeToString()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT of os.kill")
@pytest.mark.parametrize(
    "code",
    # One process for all: most of a case is the import of torch and the first export.
    [
        (MOMENTS + TIME_OUTS).replace("TIMES", "5") + IN_FORWARD + TWICE + IN_A_THREAD + OWN_HANDLER + IGNORED,
        pytest.param(MOMENTS.replace("TIMES", "15"), marks=pytest.mark.nightly),
        pytest.param(TIME_OUTS.replace("TIMES", "15"), marks=pytest.mark.nightly),
    ],
    ids=["moments, time-outs, in-forward, twice, in-a-thread, own-handler, ignored", "15 moments", "15 time-outs"],
)
def test_interrupts(code: str, tmp_path: Path) -> None:
    # A shell may start the tests with SIGINT ignored.
    default = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    # A file, because the source code of forward is rewritten.
    script = tmp_path / "interrupted.py"
    script.write_text(default + textwrap.dedent(SOURCE) + code)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr


# Processes that are forked while another thread exports: they export themselves, as a new process does.


SCRIPT = """
import faulthandler, gc, io, os, signal, sys, threading, time, warnings
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
        faulthandler.dump_traceback_later(50)
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

FORKED_IN_FORWARD = """
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
@pytest.mark.parametrize("times", [2, pytest.param(8, marks=pytest.mark.nightly)])
def test_a_process_that_is_forked_during_an_export(times: int, tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(SCRIPT.replace("MOMENTS", str(times)) + FORKED_IN_FORWARD)
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
