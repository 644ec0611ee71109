"""Random models with state: counters, flags, ring buffers, caches, queues, statistics, and Python reads of them."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from .python_generator import EagerTimeoutError, time_limit
from .python_program import VARIANTS, Case, PythonProgram

__all__ = ["PARTS", "generate_state"]

_OPSETS = (13, 17, 18, 20, 20, 21, 23, 24)
_CALLS = 5
_ATTEMPTS = 40

_MODULE = '''\
"""A random program with state."""

import torch
import torch.nn.functional as F


{classes}class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
{fields}

    def forward(self, x):
{body}
'''

_CLASS = """\
class Part{number}(torch.nn.Module):
    def __init__(self):
        super().__init__()
{fields}

    def forward(self, x):
{body}
        return y


"""


@dataclass(frozen=True)
class _Part:
    """One kind of state.

    Attributes:
        fields: Name to the expression of its value at the beginning.
        before: Statements before the write; each program has one.
        writes: Statements that write the state; each program has one.
        reads: Statements that make ``y`` of ``x`` and the state; each program has one.
    """

    fields: dict[str, str]
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    before: tuple[str, ...] = ("",)


_READS_OF_NUMBER = (
    "y = x * self.n",
    "y = x + self.n.to(x.dtype) / 2",
    "if self.n > 1:\n    y = x * 2\nelse:\n    y = x - 1",
    "y = x\nif self.n == 2:\n    y = y + 3",
    "y = x * float(self.n)",
    "y = x + int(self.n)",
    "y = x * self.n.item() - 1",
    "y = x\nfor _ in range(int(self.n) % 3):\n    y = y * 0.5 + 1",
    "y = x - 1 if torch.equal(self.n, torch.tensor(2)) else x + 1",
    "y = x * (1.0, 0.5, 2.0)[int(self.n) % 3]",
    "y = torch.where(self.n > 1, x, -x)",
    "y = x if bool(self.n % 2) else -x",
    "y = x * max(int(self.n), 2)",
    "y = x * 2 if 1 < self.n.item() < 4 else x",
    "y = x + torch.full((3,), float(self.n))",
    "y = x + torch.ones(int(self.n) + 1, 3).sum(0)",
    "y = x / (1.0 + float(self.n))",
)

PARTS: dict[str, _Part] = {
    "counter": _Part(
        {"n": "torch.tensor(0)"},
        (
            "self.n += 1",
            "self.n.add_(1)",
            "self.n = self.n + 1",
            "self.n.copy_(self.n + 1)",
            "self.n.fill_(self.n + 2)",
            "self.n += x.shape[0]",
            "if x.sum() > 0.1:\n    self.n += 1",
            "self.n += (x > 0).sum()",
            "self.n.fill_(int(self.n) + 1)",
            "self.n += 1\nif self.n > 2:\n    self.n.zero_()",
            "if self.n >= 2:\n    self.n.zero_()\nelse:\n    self.n += 1",
            "self.n = (self.n + 1) % 3",
        ),
        _READS_OF_NUMBER,
    ),
    "flag": _Part(
        {"ready": "torch.tensor(False)", "loc": "torch.zeros(3)"},
        (
            "if not self.ready:\n    self.loc.copy_(x.mean(0))\n    self.ready.fill_(True)",
            "if not self.ready:\n    self.loc = x[0] * 2\n    self.ready = torch.tensor(True)",
            "if self.ready.item() == 0:\n    self.loc.copy_(x[-1])\n    self.ready.logical_not_()",
            "if self.ready:\n    self.loc.mul_(0.5).add_(x[0])\nelse:\n    self.loc.copy_(x[0])\n    self.ready[...] = True",
            "with torch.no_grad():\n    if not bool(self.ready):\n        self.loc += x.sum(0)\n        self.ready |= True",
            "self.loc.copy_(torch.where(self.ready, self.loc, x[0]))\nself.ready.fill_(True)",
        ),
        (
            "y = x - self.loc",
            "y = x * 2 if self.ready else x",
            "y = x + self.loc if bool(self.ready) and x.shape[0] > 1 else x",
        ),
        ("", "y = x if self.ready else -x\nx = x + y"),
    ),
    "ring": _Part(
        {"buf": "torch.zeros(4, 3)", "pos": "torch.tensor(0)"},
        (
            "self.buf[self.pos % 4] = x[0]\nself.pos += 1",
            "self.buf[int(self.pos) % 4] = x[0]\nself.pos += 1",
            "self.buf[self.pos] = x[-1]\nself.pos = (self.pos + 1) % 4",
            "self.buf = torch.roll(self.buf, -1, 0)\nself.buf[-1] = x[0]\nself.pos += 1",
            "self.buf = torch.cat([self.buf[1:], x[:1]])\nself.pos += 1",
            "self.buf.copy_(torch.cat([x[:1], self.buf[:-1]]))\nself.pos += 1",
            "self.buf.index_copy_(0, self.pos.view(1) % 4, x[:1])\nself.pos.add_(1)",
            "self.buf[1:] = self.buf[:-1].clone()\nself.buf[0] = x[0]\nself.pos += 1",
            "self.buf.select(0, self.pos.item() % 4).add_(x[0])\nself.pos += 1",
        ),
        (
            "y = x + self.buf.sum(0)",
            "y = x * self.buf[self.pos % 4]",
            "y = x + self.buf[: int(self.pos)].sum(0)",
            "y = x + self.buf.sum(0) / min(int(self.pos), 4)",
            "y = x + self.buf.mean(0) if self.pos >= 4 else x",
        ),
    ),
    "cache": _Part(
        {"k": "torch.zeros(24, 3)", "pos": "torch.tensor(0)"},
        (
            "self.k[p : p + n] = x\nself.pos += n",
            "self.k.narrow(0, p, n).copy_(x)\nself.pos += n",
            "self.k.index_copy_(0, self.pos + torch.arange(n), x)\nself.pos += n",
            "self.k[self.pos + torch.arange(n)] = x\nself.pos += n",
            "self.k[p : p + n].add_(x)\nself.pos.fill_(p + n)",
            "self.k = self.k.index_add(0, self.pos + torch.arange(n), x)\nself.pos = self.pos + n",
            "self.k = torch.cat([self.k[:p], x, self.k[p + n :]])\nself.pos += n",
            "self.k.scatter_(0, (self.pos + torch.arange(n))[:, None].expand(n, 3), x)\nself.pos += n",
        ),
        (
            "y = x + self.k[: p + n].sum(0)",
            "y = x + self.k.sum(0)",
            "y = x + self.k[: int(self.pos)].amax(0)",
            "y = x + self.k.narrow(0, 0, self.pos.item()).sum(0)",
            "y = x + (self.k * (torch.arange(24) < self.pos)[:, None]).sum(0)",
            "y = torch.softmax(x @ self.k[: p + n].T, -1) @ self.k[: p + n]",
            "y = self.k[p : p + n] * 2",
        ),
        ("p, n = int(self.pos), x.shape[0]", "n = x.shape[0]\np = self.pos.item()"),
    ),
    "growing": _Part(
        {"k": "torch.zeros(0, 3)"},
        (
            "self.k = torch.cat([self.k, x])",
            "self.k = torch.cat([self.k, x[:1]])",
            "self.k = torch.cat([self.k, x])[-5:]",
            "self.k = torch.cat([x, self.k])[:4]",
            "self.k = torch.vstack((self.k, x.mean(0)))",
        ),
        ("y = x + self.k.sum(0)", "y = x * self.k.shape[0]", "y = torch.softmax(x @ self.k.T, -1) @ self.k"),
    ),
    "queue": _Part(
        {"queue": "torch.zeros(3, 6)", "ptr": "torch.zeros(1, dtype=torch.long)"},
        (
            "self.queue[:, p : p + 1] = x[:1].T\nself.ptr[0] = (p + 1) % 6",
            "self.queue[:, p : p + 2] = x[:1].expand(2, 3).T\np = (p + 2) % 6\nself.ptr[0] = p",
            "self.queue[:, p] = x[0]\nself.ptr.copy_((self.ptr + 1) % 6)",
            "self.queue.narrow(1, p, 2).copy_(x[:1].expand(2, 3).T)\nself.ptr.fill_((p + 2) % 6)",
            "self.queue.index_copy_(1, self.ptr, x[:1].T)\nself.ptr = (self.ptr + 1) % 6",
        ),
        ("y = x + self.queue.sum(1)", "y = (x @ self.queue.clone()).amax(1, keepdim=True) + x"),
        ("p = int(self.ptr)", "p = self.ptr.item()", "p = int(self.ptr[0])"),
    ),
    "statistics": _Part(
        {"mean": "torch.zeros(3)", "count": "torch.tensor(0)"},
        (
            "self.mean.mul_(0.5).add_(x.mean(0), alpha=0.5)\nself.count += 1",
            "self.mean = self.mean * 0.75 + x.mean(0) * 0.25\nself.count += 1",
            "self.mean.lerp_(x.mean(0), 0.25)\nself.count += 1",
            "self.count += x.shape[0]\nself.mean += (x - self.mean).sum(0) / self.count",
            "self.count += 1\nself.mean += (x.mean(0) - self.mean) / float(self.count)",
            "self.count += 1\nself.mean.lerp_(x.mean(0), 1.0 / self.count.item())",
            "f = 0.5 if self.count > 1 else 1.0\nself.mean.mul_(1 - f).add_(x.mean(0) * f)\nself.count += 1",
            "torch.maximum(self.mean, x.amax(0), out=self.mean)\nself.count += 1",
        ),
        (
            "y = x - self.mean",
            "y = x * float(self.mean.mean())",
            "y = x / 2 if self.mean.abs().max() > 0.9 else x",
            "y = x - self.mean if self.count > 2 else x",
            "y = x + self.mean.tolist()[0]",
        ),
    ),
    "norm": _Part(
        {"mean": "torch.zeros(3)", "var": "torch.ones(3)", "count": "torch.tensor(0)"},
        ("self.count += 1",),
        (
            "y = F.batch_norm(x, self.mean, self.var, training=True, momentum=0.25)",
            "y = F.batch_norm(x, self.mean, self.var, training=True, momentum=1 / (float(self.count) + 1))",
            "y = F.batch_norm(x, self.mean, self.var, training=self.count.item() % 2 == 1)",
        ),
    ),
    "swap": _Part(
        {"a": "torch.zeros(3)", "b": "torch.ones(3)"},
        (
            "self.a, self.b = self.b, self.a + x.mean(0)",
            "old = self.a\nself.a = x[0].clone()\nself.b = old",
            "old = self.a.clone()\nself.a.copy_(self.b)\nself.b.copy_(old + x[0])",
            "self.a = self.b\nself.b = self.b * 2",
            "self.b = self.a\nself.a = x[0] + 1",
            "old = self.a\nself.a += x[0]\nself.b = old * 1",
        ),
        ("y = x + self.a - self.b * 2", "y = x * self.a if self.b.sum() > 0.9 else x + self.b"),
    ),
    "reset": _Part(
        {"h": "torch.zeros(3)"},
        (
            "self.h += x.sum(0)\nif self.h.abs().max() > 3.1:\n    self.h.zero_()",
            "if x.sum() > 0.1:\n    self.h.zero_()\nself.h += x[0]",
            "if bool((self.h > 1.1).any()):\n    self.h = torch.zeros(3)\nself.h = self.h + x.abs().sum(0)",
            "self.h = torch.where(self.h.abs() > 2.1, 0.0, self.h + x[0])",
            "self.h.masked_fill_(self.h > 1.1, 0)\nself.h += x.amax(0)",
            "if torch.equal(self.h, torch.zeros(3)):\n    self.h += x[0].abs() + 1\nelse:\n    self.h.zero_()",
            "while self.h.sum() < 2.1:\n    self.h += 1\nself.h -= x[0].abs()",
            "self.h[self.h > 1.1] = 0\nself.h += x[0].abs()",
        ),
        ("y = x + self.h", "y = x * 2 if self.h.sum() > 0.1 else x + self.h", "y = x + float(self.h.sum())"),
    ),
    "attribute": _Part(
        {"step": "0", "last": "torch.zeros(3)"},
        (
            "self.step += 1\nself.last = x[0].clone()",
            "self.last = self.last * 0.5 + x[0]\nself.step = (self.step + 1) % 3",
            "self.last += x[0]",
        ),
        ("y = x * (self.step + 1) + self.last", "y = x + self.last if self.step > 1 else x", "y = x - self.last"),
    ),
}
"""Kind of state to its parts."""


def generate_state(seed: int) -> PythonProgram:
    """The random program of a seed, which is run as a sequence of calls; the same in every process."""
    rng = random.Random(seed)
    for _ in range(_ATTEMPTS):
        program = _drawn(rng, seed)
        if _is_valid(program):
            return program
    raise RuntimeError(f"no program of seed {seed} runs in eager torch")


def _drawn(rng: random.Random, seed: int) -> PythonProgram:
    fields: list[str] = []
    classes, body = "", ["h = x"]
    for number in range(rng.choice((1, 1, 1, 2, 2, 3))):
        part = PARTS[rng.choice(tuple(PARTS))]
        statements = "\n".join(filter(None, (rng.choice(part.before), *_written_and_read(rng, part)))).splitlines()
        own = [_field(rng, name, value) for name, value in part.fields.items()]
        if rng.random() < 0.4:
            classes += _CLASS.format(number=number, fields=_indented(own), body=_indented(statements))
            fields.append(f"self.part{number} = Part{number}()")
            called = f"self.part{number}"
            if rng.random() < 0.15:
                # A module that is shared under two names.
                fields.append(f"self.other{number} = self.part{number}")
                body.append(f"h = h + {called}(h)")
                called = f"self.other{number}"
            body.append(f"y = {called}(h)")
        else:
            fields += [_renamed(line, part, number) for line in own]
            body += ["x = h", *(_renamed(line, part, number) for line in statements)]
        body.append(rng.choice(("h = y + x", "h = h + y", "h = y")) if number else "h = y")
    body.append(rng.choice(("return h", "return h, y", "return h.sum(0), y", "return {'h': h, 'y': y * 2}")))
    source = _MODULE.format(classes=classes, fields=_indented(fields), body=_indented(body))
    naming = rng.choice(("static", "static", "names", "DYNAMIC", "AUTO"))
    rows = rng.choice((4, 3, 2))
    others = (1, 2, 3, 4, rows) if naming != "static" else (rows,)
    cases: list[Case] = [(rng.choice(others), rng.choice(VARIANTS)) for _ in range(_CALLS)]
    return PythonProgram(
        seed,
        source,
        rng.choice(_OPSETS),
        naming,  # type: ignore[arg-type]
        "io",
        "error",
        (rows, "base"),
        tuple(cases),
        "state",
    )


def _written_and_read(rng: random.Random, part: _Part) -> Sequence[str]:
    """A write and a read, in either order."""
    write, read = rng.choice(part.writes), rng.choice(part.reads)
    if rng.random() < 0.25:
        return read, write
    if rng.random() < 0.1:
        return read.replace("y", "z"), write, read
    return write, read


def _field(rng: random.Random, name: str, value: str) -> str:
    if not value.startswith("torch.") or name == "last" or rng.random() < 0.1:
        return f"self.{name} = {value}"
    persistent = rng.choice(("", "", ", persistent=False"))
    return f"self.register_buffer({name!r}, {value}{persistent})"


def _renamed(line: str, part: _Part, number: int) -> str:
    """A line with names of state that no other part of the program has."""
    for name in part.fields:
        line = line.replace(f"self.{name}", f"self.{name}{number}").replace(f"({name!r},", f"({name + str(number)!r},")
    return line


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"        {line}" for line in lines)


def _is_valid(program: PythonProgram) -> bool:
    """Whether eager torch runs all calls, with results of moderate size."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        model = program.load(Path(directory))().eval()
    try:
        with time_limit():
            for case in (program.example, *program.cases):
                outputs = model(*program.example_inputs(case))
                leaves = torch.utils._pytree.tree_leaves(outputs)
                if not all(bool((leaf.abs() < 1e6).all()) for leaf in leaves):
                    return False
    except (Exception, EagerTimeoutError):  # noqa: BLE001 - programs raise any exception
        return False
    return True
