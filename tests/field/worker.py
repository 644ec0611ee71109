"""Verdicts in processes of their own, forked from one that has imported torch: a crash is a verdict, as is an export that takes too long."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

import torch

import fxonnx

from ..models.torchvision_shim import import_torchvision
from .judge import Result, judge
from .row import Row

__all__ = ["SITE", "prepare", "run"]

SITE = Path(__file__).parents[2] / ".field" / "site"
"""The packages of the libraries, without their dependencies; ``make field`` installs them."""

_WALL = 6
"""Other processes may take turns: so many times the processor time passes until a process is ended."""


@cache
def prepare() -> None:
    """Import and compile the modules that each export needs."""
    torch.set_num_threads(1)
    import_torchvision()
    fxonnx.export(torch.nn.Linear(2, 2), (torch.rand(3, 2),), dynamic_shapes=({0: "batch"},))


def run(row: Row, exporter: str = "fxonnx") -> Result:
    """The result of one row, in a process of its own."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_judge, args=(row, exporter, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(row.seconds * _WALL):
            process.kill()
            return Result("timeout", f"more than {row.seconds * _WALL} s")
        result: Result = receiver.recv()
        return result
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGPROF:
            return Result("timeout", f"more than {row.seconds} s of processor time")
        return Result("raw error", f"the process ended with {process.exitcode}")
    finally:
        process.join()


def _judge(row: Row, exporter: str, sender: Connection) -> None:
    sys.path.append(str(SITE))  # in this process only: other packages behave differently beside them
    signal.setitimer(signal.ITIMER_PROF, row.seconds)
    sender.send(judge(row, exporter))
