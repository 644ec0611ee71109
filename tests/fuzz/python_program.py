"""``PythonProgram``: one random model with Python control flow as data: source in a file of its own, inputs, script."""

from __future__ import annotations

import ast
import importlib.util
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

__all__ = ["PARAMETERS", "VARIANTS", "Case", "PythonProgram"]

Case = tuple[int, str]
"""The inputs of one run: the size of the dynamic dim, and one of ``VARIANTS``."""

VARIANTS = ("base", "flipped", "zero", "large", "other")

PARAMETERS: Mapping[str, str] = {"x": "R", "y": "R", "v": "V", "s": "S", "k": "I", "flag": "B"}
"""Parameter of ``forward`` to the type of its values; see ``python_statements``."""

_COUNTS: Mapping[str, int] = {"base": 2, "flipped": 0, "zero": 1, "large": 4, "other": 3}
_SHAPES: Mapping[str, tuple[int, ...]] = {"V": (3,), "S": ()}

_SCRIPT = """\
{source}

import zlib

import onnxruntime

import fxonnx


{make}

model = Model().eval()
program = fxonnx.export(model, {example}, "/tmp/fuzz.onnx", {options})
session = onnxruntime.InferenceSession("/tmp/fuzz.onnx")
names = [value.name for value in session.get_inputs()]
for case in {cases}:
    inputs = make(*case)
    feeds = {{name: value.numpy() for name, value in zip(names, inputs)}}
    print(case, "eager", Model().eval()(*[value.clone() for value in inputs]))
    print(case, "file ", session.run(None, feeds))
"""

_MAKE = '''\
def make(rows, variant):
    """Inputs of one run."""
    return [{values}]


def value(name, shape, variant):
    seed = zlib.crc32(name.encode()) + sum(shape) + (8 if variant == "other" else 1)
    base = torch.randint(-6, 7, shape, generator=torch.Generator().manual_seed(seed)) / 4
    return base * {{"flipped": -1, "zero": 0, "large": 4}}.get(variant, 1) + 0.0
'''


@dataclass(frozen=True)
class PythonProgram:
    """One random model with the options of its export and its runs.

    Attributes:
        seed: The seed of the generator.
        source: The module that defines ``Model``.
        opset: Target opset.
        naming: How the dynamic dim is declared: not at all, by its name, or as ``Dim.DYNAMIC`` or ``Dim.AUTO``.
        state: Option of the export.
        data_dependent: Option of the export.
        example: The example inputs.
        cases: Further inputs to run it at.
        kind: "python"; "state" for programs that run as a sequence of calls.
    """

    seed: int
    source: str
    opset: int
    naming: Literal["static", "names", "DYNAMIC", "AUTO"]
    state: Literal["warn", "outputs", "io"]
    data_dependent: Literal["error", "example"]
    example: Case
    cases: tuple[Case, ...]
    kind: Literal["python", "state"] = "python"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The parameters of ``forward``."""
        for node in ast.walk(ast.parse(self.source)):
            if isinstance(node, ast.FunctionDef) and node.name == "forward":
                return tuple(argument.arg for argument in node.args.args[1:])
        raise ValueError("the source has no forward")

    @property
    def dynamic_shapes(self) -> dict[str, Any] | None:
        """``dynamic_shapes`` of the export."""
        if self.naming == "static":
            return None
        dim = "n" if self.naming == "names" else getattr(torch.export.Dim, self.naming)
        return {name: {0: dim} if PARAMETERS[name] == "R" else None for name in self.inputs}

    def example_inputs(self, case: Case) -> tuple[torch.Tensor, ...]:
        """The inputs of one run, identical in every process."""
        return tuple(_value(name, *case) for name in self.inputs)

    def load(self, directory: Path) -> type[torch.nn.Module]:
        """Import the source from a file.

        Args:
            directory: An empty directory, to be kept as long as the model is used.
        """
        path = directory / "fuzzed_model.py"
        path.write_text(self.source)
        spec = importlib.util.spec_from_file_location("fuzzed_model", path)
        if spec is None or spec.loader is None:
            raise ImportError(str(path))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        model: type[torch.nn.Module] = module.Model
        return model

    def script(self, cases: Any = None) -> str:
        """A script that exports the model and prints the outputs of eager torch and ONNX Runtime."""
        values = ", ".join(map(_value_source, self.inputs))
        options = f"opset_version={self.opset}, dynamic_shapes={self._shapes_source}"
        options += f", state={self.state!r}" if self.state != "warn" else ""
        options += f", data_dependent={self.data_dependent!r}" if self.data_dependent != "error" else ""
        return _SCRIPT.format(
            source=self.source,
            make=_MAKE.format(values=values).replace("{{", "{").replace("}}", "}"),
            example=f"tuple(make{self.example})",
            options=options,
            cases=list(cases or [self.example, *self.cases]),
        )

    @property
    def _shapes_source(self) -> str:
        if self.naming in ("static", "names"):
            return repr(self.dynamic_shapes)
        dim = f"torch.export.Dim.{self.naming}"
        specs = [f"{name!r}: " + (f"{{0: {dim}}}" if PARAMETERS[name] == "R" else "None") for name in self.inputs]
        return f"{{{', '.join(specs)}}}"

    def replaced(self, **changes: Any) -> PythonProgram:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    def to_json(self) -> str:
        """The program as one line of text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PythonProgram:
        """The program that :meth:`to_json` wrote."""
        fields = json.loads(text)
        fields["example"], fields["cases"] = tuple(fields["example"]), tuple(map(tuple, fields["cases"]))
        return cls(**fields)


def _value(name: str, rows: int, variant: str) -> torch.Tensor:
    type_ = PARAMETERS[name]
    if type_ == "I":
        return torch.tensor(_COUNTS[variant])
    if type_ == "B":
        return torch.tensor(_COUNTS[variant] % 2 == 0)
    shape = _SHAPES.get(type_, (rows, 3))
    # Multiples of 1/4, whose sums are exact.
    seed = zlib.crc32(name.encode()) + sum(shape) + (8 if variant == "other" else 1)
    base = torch.randint(-6, 7, shape, generator=torch.Generator().manual_seed(seed)) / 4
    # Adding zero turns -0.0 into 0.0.
    return base * {"flipped": -1, "zero": 0, "large": 4}.get(variant, 1) + 0.0


def _value_source(name: str) -> str:
    type_ = PARAMETERS[name]
    if type_ in "IB":
        count = f"{dict(_COUNTS)}[variant]"
        return f"torch.tensor({count}{' % 2 == 0' if type_ == 'B' else ''})"
    shape = {"V": "(3,)", "S": "()"}.get(type_, "(rows, 3)")
    return f"value({name!r}, {shape}, variant)"
