"""``Program``: one random model as data, with its module, its inputs and its source as a runnable script."""

from __future__ import annotations

import ast
import itertools
import json
import linecache
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

__all__ = ["DIMS", "INPUTS", "Input", "Program", "Sizes"]

Sizes = tuple[int, int, int]
"""Sizes of the dims ``batch``, ``seq`` and ``cols``."""

DIMS = ("batch", "seq", "cols")


@dataclass(frozen=True)
class Input:
    """An input that programs may use.

    Attributes:
        shape: Sizes; a string is one of ``DIMS``.
        values: Distribution of the elements: "quarters" are multiples of 1/4, which floats add without rounding.
    """

    shape: tuple[int | str, ...]
    values: str = "quarters"

    def make(self, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
        """Random values for these sizes."""
        shape = [sizes[DIMS.index(size)] if isinstance(size, str) else size for size in self.shape]
        if self.values == "index":
            return torch.randint(0, 4, shape, generator=generator)
        if self.values == "bool":
            return torch.rand(shape, generator=generator) > 0.4
        return torch.randint(-12, 13, shape, generator=generator) / 4


INPUTS: Mapping[str, Input] = {
    "x": Input(("batch", "seq", 4)),
    "y": Input(("batch", "seq", 4)),
    "z": Input(("seq", 4)),
    "row": Input(("batch",)),
    "image": Input(("batch", 2, "seq", "cols")),
    "index": Input(("batch", "seq"), "index"),
    "mask": Input(("batch", "seq"), "bool"),
    "keep": Input(("seq", 1), "bool"),
    "ids": Input(("cols",), "index"),
}

_ATTRIBUTES = """\
generator = torch.Generator().manual_seed(1)
quarters = lambda *shape: torch.randint(-8, 9, shape, generator=generator) / 4
self.weight = nn.Parameter(quarters(4, 4))
self.bias = nn.Parameter(quarters(4))
self.register_buffer("buffer", quarters(4))
self.register_buffer("table", quarters(20, 4))
self.register_buffer("row", quarters(1, 4))
self.register_buffer("column", quarters(4, 1))
self.register_buffer("single", quarters(1))
self.register_buffer("scalar", quarters())
self.register_buffer("step", torch.tensor(2))
self.register_buffer("steps", torch.tensor([3]))
self.register_buffer("flag", torch.tensor([True]))"""

_QUARTERS = ("weight", "bias", "buffer", "table", "row", "column", "single", "scalar")
"""The attributes that need the lines of ``_ATTRIBUTES`` without one."""

_MODEL = """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
{init}

    def forward(self, {parameters}):
{body}
        return {outputs}
"""

_SCRIPT = """\
{model}

def make(batch, seq, cols):
    generator = torch.Generator().manual_seed(batch * 10007 + seq * 101 + cols)
    quarters = lambda *shape: torch.randint(-12, 13, shape, generator=generator) / 4
    return [{inputs}]


import onnxruntime
import fxonnx

model = Model().eval()
program = fxonnx.export(
    model,
    tuple(make{example}),
    "/tmp/fuzz.onnx",
    dynamic_shapes={dynamic_shapes},
    opset_version={opset},
    target={target!r},
)
session = onnxruntime.InferenceSession("/tmp/fuzz.onnx")
names = [value.name for value in session.get_inputs()]
for sizes in {sizes}:
    inputs = make(*sizes)
    feeds = {{name: value.numpy() for name, value in zip(names, inputs)}}
    print(sizes, "eager", model(*[value.clone() for value in inputs]))
    print(sizes, "file ", session.run(None, feeds))
"""

_count = itertools.count()


@dataclass(frozen=True)
class Program:
    """One random model with the options of its export and run.

    Attributes:
        seed: The seed of the generator.
        kind: The kind of statements it mostly consists of.
        opset: Target opset; None for the default.
        target: The target runtime.
        modules: Lines of ``__init__``: name of a submodule to the call that creates it.
        lines: Lines of ``forward``.
        outputs: Names of the variables that ``forward`` returns.
        example: Sizes of the example inputs.
        sizes: Further sizes to run it at.
        dynamic: The dynamic dims.
        naming: How dynamic dims are declared: by their names, or all as ``Dim.DYNAMIC`` or ``Dim.AUTO``.
    """

    seed: int
    kind: str
    opset: int | None
    target: str | None
    modules: Mapping[str, str]
    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    example: Sizes
    sizes: tuple[Sizes, ...]
    dynamic: tuple[str, ...] = DIMS
    naming: Literal["names", "DYNAMIC", "AUTO"] = "names"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs it uses, at least one, in the order of ``INPUTS``."""
        names = {
            node.id
            for line in [*self.lines, *self.outputs]
            for node in ast.walk(ast.parse(line))
            if isinstance(node, ast.Name)
        }
        return tuple(name for name in INPUTS if name in names) or ("x",)

    @property
    def dynamic_shapes(self) -> tuple[dict[int, Any] | None, ...]:
        """``dynamic_shapes`` of the export."""
        declared: dict[Any, Any] = {}
        if self.naming != "names":
            declared = dict.fromkeys(DIMS, getattr(torch.export.Dim, self.naming))
        specs: list[dict[int, Any] | None] = []
        for name in self.inputs:
            axes = {axis: declared.get(dim, dim) for axis, dim in enumerate(INPUTS[name].shape) if dim in self.dynamic}
            specs.append(axes or None)
        return tuple(specs)

    @property
    def model_source(self) -> str:
        """The model as Python source."""
        init = [line for line in _ATTRIBUTES.splitlines() if self._needs(line)]
        used = {name: call for name, call in self.modules.items() if self._reads(name)}
        for name, call in used.items():
            init += ["torch.manual_seed(1)", f"self.{name} = {call}"]
        if used:
            init += ["for parameter in self.parameters():", "    parameter.data = (parameter.data * 8).round() / 4"]
        outputs = ", ".join(self.outputs) + ("," if len(self.outputs) == 1 else "")
        return _MODEL.format(
            init="\n".join(f"        {line}" for line in init or ["pass"]),
            parameters=", ".join(self.inputs),
            body="\n".join(f"        {line}" for line in self.lines),
            outputs=f"({outputs})",
        )

    def model(self) -> torch.nn.Module:
        """The model in eval mode."""
        source = self.model_source
        # Warnings and errors show these source lines.
        name = f"<fuzz {next(_count)}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        namespace: dict[str, Any] = {}
        exec(compile(source, name, "exec"), namespace)
        model: torch.nn.Module = namespace["Model"]()
        return model.eval()

    def example_inputs(self, sizes: Sizes) -> tuple[torch.Tensor, ...]:
        """Inputs of these sizes, identical in every process."""
        batch, seq, cols = sizes
        generator = torch.Generator().manual_seed(batch * 10007 + seq * 101 + cols)
        return tuple(INPUTS[name].make(sizes, generator) for name in self.inputs)

    def static_sizes(self, sizes: Sizes) -> Sizes:
        """The sizes, with those of the example inputs for static dims."""
        batch, seq, cols = (
            size if dim in self.dynamic else at_export
            for dim, size, at_export in zip(DIMS, sizes, self.example, strict=True)
        )
        return (batch, seq, cols)

    def script(self, sizes: Sequence[Sizes] | None = None) -> str:
        """A script that exports the model and prints the outputs of eager torch and ONNX Runtime."""
        return _SCRIPT.format(
            model=self.model_source,
            inputs=", ".join(map(_input_source, self.inputs)),
            example=self.example,
            dynamic_shapes=self._shapes_source,
            opset=self.opset,
            target=self.target,
            sizes=list(sizes or [self.example, *self.sizes]),
        )

    @property
    def _shapes_source(self) -> str:
        hint = f"torch.export.Dim.{self.naming}"
        return re.sub(r"DimHint\(\w+\)", hint, repr(self.dynamic_shapes))

    def _reads(self, attribute: str) -> bool:
        return any(re.search(rf"\bself\.{attribute}\b", line) for line in [*self.lines, *self.outputs])

    def _needs(self, line: str) -> bool:
        """Whether a line of ``_ATTRIBUTES`` is needed."""
        matched = re.search(r"self\.register_buffer\(\"(\w+)|self\.(\w+) =", line)
        if matched is None:
            return any(map(self._reads, _QUARTERS))
        return self._reads(matched[1] or matched[2])

    def replaced(self, **changes: Any) -> Program:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    def to_json(self) -> str:
        """The program as one line of text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Program:
        """The program that :meth:`to_json` wrote."""
        fields = json.loads(text)
        fields["lines"], fields["outputs"], fields["dynamic"] = (
            tuple(fields[name]) for name in ("lines", "outputs", "dynamic")
        )
        fields["example"], fields["sizes"] = tuple(fields["example"]), tuple(map(tuple, fields["sizes"]))
        return cls(**fields)


def _input_source(name: str) -> str:
    shape = ", ".join(map(str, INPUTS[name].shape)) + ","
    if INPUTS[name].values == "index":
        return f"torch.randint(0, 4, ({shape}), generator=generator)"
    if INPUTS[name].values == "bool":
        return f"torch.rand(({shape}), generator=generator) > 0.4"
    return f"quarters({shape})"
