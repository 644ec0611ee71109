"""One program as data: the source of its model, the texts of its calls, dims and options."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import sys
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

__all__ = ["SALT", "Built", "Program", "checksum", "module", "share"]

PRELUDE = """\
import copy, functools, io, math
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

"""

SALT = "FXONNX_SUPERSET_SALT"
"""The variable with which ``python -m tests.superset --salt`` selects other programs."""

_FILES = itertools.count()


def checksum(*texts: str) -> int:
    """A number that texts determine in every process."""
    return zlib.crc32("\n".join(texts).encode())


def share(share_of: int, *texts: str) -> bool:
    """Whether one of ``share_of`` programs is kept, by the checksum of its texts; other ones with another salt."""
    return checksum(os.environ.get(SALT, "share"), *texts) % share_of == 0


@dataclass(frozen=True)
class Program:
    """A model and its calls.

    Attributes:
        family: The first part of the name.
        source: Python source that defines ``build()``, which returns the model; without imports.
        calls: Expressions of tuples of inputs; the first one is the example.
        dynamic: An expression of the dynamic dims by input; each a dict of axes to names.
        options: Arguments of ``fxonnx.export``.
        has_source: Whether the source is in a file, or executed as text.
    """

    family: str
    source: str
    calls: tuple[str, ...]
    dynamic: str = "None"
    options: dict[str, Any] = field(default_factory=dict)
    has_source: bool = True

    @property
    def text(self) -> str:
        """The program as readable text, which also determines its name."""
        options = "".join(f", {key}={value!r}" for key, value in sorted(self.options.items()))
        where = "" if self.has_source else "# executed as text\n"
        calls = "\n".join(f"call: {call}" for call in self.calls)
        return f"{where}{self.source.rstrip()}\n{calls}\ndynamic_shapes={self.dynamic}{options}"

    @property
    def name(self) -> str:
        """The family and the checksum of the text: the same as long as the program is."""
        return f"{self.family}/{checksum(self.text):08x}"

    def to_json(self) -> str:
        """The program in one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Program:
        """The program of ``to_json``."""
        fields = json.loads(text)
        return cls(**{**fields, "calls": tuple(fields["calls"])})

    def load(self, folder: Path) -> Built:
        """Execute the source.

        Args:
            folder: Where the file of the source is written.
        """
        name = f"superset_{next(_FILES)}"
        # TorchDynamo imports the module of a function.
        found = sys.modules[name] = ModuleType(name)
        if self.has_source:
            path = folder / f"{name}.py"
            path.write_text(PRELUDE + self.source)
            spec = importlib.util.spec_from_file_location(name, path)
            if spec is None or spec.loader is None:
                raise RuntimeError(f"{path} is not a module")
            found = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(found)
        else:
            exec(PRELUDE + self.source, found.__dict__)  # a class of an interactive session has no source
        return Built(self, found)


class Built:
    """A program whose source was executed."""

    def __init__(self, program: Program, module: ModuleType) -> None:
        self._program = program
        self._module = module

    def model(self) -> Any:
        """A new model, with the same weights each time."""
        torch.manual_seed(3)
        model = self._module.build()
        if isinstance(model, torch.nn.Module) and not isinstance(model, torch.jit.ScriptModule):
            model.eval()
        return model

    def inputs(self, call: int) -> tuple[Any, ...]:
        """New inputs of a call, with the same values each time."""
        torch.manual_seed(100 + call)
        scope = {**vars(torch), "torch": torch, "f": _floats, "u": _uniform, "n": _numbers, "r": _integers}
        found = eval(self._program.calls[call], scope)
        return found if isinstance(found, tuple) else (found,)

    def dynamic_shapes(self) -> tuple[dict[int, str] | None, ...] | None:
        """The dynamic dims of the inputs."""
        found: tuple[dict[int, str] | None, ...] | None = eval(self._program.dynamic)
        return found


def _floats(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def _uniform(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.rand(shape) * 0.96 + 0.02).to(dtype)


def _numbers(value: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(value, dtype=dtype)


def _integers(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, high, shape).to(dtype)


def module(parameters: str, body: Sequence[str], *, init: Sequence[str] = (), form: str = "class") -> str:
    """The source of a module.

    Args:
        parameters: Those of forward, without self.
        body: Lines of forward; the last one returns.
        init: Lines of the constructor.
        form: ``class``, ``helper`` (forward calls a function of the file), ``type`` (a class without class statement) or
            ``lambda`` (for a body of one line).
    """
    lines = "\n".join(f"        {line}" for line in body)
    short = "\n".join(f"    {line}" for line in body)
    start = "".join(f"        {line}\n" for line in init)
    constructor = f"    def __init__(self):\n        super().__init__()\n{start}\n" if init else ""
    end = "\n\ndef build():\n    return Model()\n"
    if form == "lambda" and len(body) == 1 and not init:
        value = body[0].removeprefix("return ")
        return f'Model = type("Model", (nn.Module,), {{"forward": lambda self, {parameters}: ({value})}})\n{end}'
    if form == "type" and not init:
        return f'def forward(self, {parameters}):\n{short}\n\n\nModel = type("Model", (nn.Module,), {{"forward": forward}})\n{end}'
    if form == "helper" and not init:
        names = ", ".join(part.split("=")[0].strip() for part in parameters.split(","))
        call = f"class Model(nn.Module):\n    def forward(self, {parameters}):\n        return helper({names})\n"
        return f"def helper({parameters}):\n{short}\n\n\n{call}{end}"
    return f"class Model(nn.Module):\n{constructor}    def forward(self, {parameters}):\n{lines}\n{end}"
