"""Ctrl-C during an export: KeyboardInterrupt, with torch restored; the process does not end."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

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
seconds, count = time.perf_counter() - start, 30

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


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT of os.kill")
@pytest.mark.parametrize(
    "code",
    # One process for all but the moments: most of a case is the import of torch and the first export.
    [MOMENTS, IN_FORWARD + TWICE + IN_A_THREAD + OWN_HANDLER + IGNORED],
    ids=["moments", "in-forward, twice, in-a-thread, own-handler, ignored"],
)
def test_interrupts(code: str) -> None:
    # A shell may start the tests with SIGINT ignored.
    default = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script = default + textwrap.dedent(SOURCE) + code
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
