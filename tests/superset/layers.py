"""Layers with their options, in several element types, opsets and targets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .program import Program, checksum, module, share

__all__ = ["layers"]

_TABLE = Path(__file__).parent / "layers.txt"
"""Inputs in brackets, of dynamic sizes b and t, and layers or functions of them; " @ " is before arguments that are not the inputs."""

_TYPES = ("float32", "float16", "bfloat16", "float64")
_OPTIONS: tuple[dict[str, object], ...] = (
    *({"opset_version": opset} for opset in range(17, 27)),
    *({"target": target} for target in ("onnxruntime", "openvino", "tensorrt", "onnxruntime-web")),
    {},
)

_TIES = ("median", "sort", "topk", "torch.mode", "kthvalue", "indices", "histc", "round", "nextafter")
"""Parts of the names of functions whose results are determined by chance for equal values, of which halves have many."""


def _layers() -> Iterator[tuple[str, list[str]]]:
    for section in _TABLE.read_text().split("\n\n"):
        inputs, *texts = section.strip().splitlines()
        yield inputs.strip("[]"), texts


def layers() -> Iterator[Program]:
    """All programs of the family."""
    for inputs, texts in _layers():
        for text in texts:
            for dtype in _TYPES:
                for options in _OPTIONS:
                    if dtype in ("bfloat16", "float64") and options.get("target") in ("openvino", "tensorrt"):
                        continue  # ONNX Runtime lacks kernels that these have
                    if dtype.endswith("float16") and any(word in text for word in _TIES):
                        continue
                    if share(14 if dtype != "float32" else 10, text, inputs, dtype, str(options)):
                        yield _program(inputs, text, dtype, options)


def _program(inputs: str, text: str, dtype: str, options: dict[str, object]) -> Program:
    layer, _, arguments = text.partition(" @ ")
    names = ["x", "y", "z"][: 1 + inputs.count("), ")]
    arguments = arguments or ", ".join(names)
    init, call = [f"self.m = {layer}"], f"self.m({arguments})"
    if layer.startswith(("torch.", "F.", "functools")):
        init, call = [], f"{layer}({arguments})"
    body = [f"return {call}"]
    kind = f", dtype={dtype}"
    if dtype == "bfloat16":  # NumPy has no arrays of this type
        floats = [name for name, part in zip(names, inputs.split("), "), strict=True) if part.startswith("f")]
        body = [*(f"{name} = {name}.bfloat16()" for name in floats), f"o = {call}"]
        body.append("return [v.float() if v.is_floating_point() else v for v in torch.utils._pytree.tree_leaves(o)]")
        kind = ""
    source = module(", ".join(names), body, init=init)
    if dtype != "float32":
        source = source.replace("return Model()", f"return Model().to(torch.{dtype})")
    dynamic, sizes = _dynamic(inputs, checksum(text, dtype, str(options)) % 3)
    calls = []
    for b, t in sizes:
        parts = [part.strip() + ")" for part in inputs.rstrip(")").split("), ")]
        concrete = [
            part.replace("b,", f"{b},").replace("b)", f"{b})").replace(" t,", f" {t},").replace(" t)", f" {t})")
            for part in parts
        ]
        calls.append(
            "(" + ", ".join(part[:-1] + kind + ")" if part.startswith("f") else part for part in concrete) + ",)"
        )
    return Program("layers", source, tuple(calls), dynamic, dict(options))


def _dynamic(inputs: str, number: int) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The dynamic dims of some of b and t, and the sizes of the calls."""
    sizes = (((2, 9), (2, 9), (2, 9)), ((2, 9), (3, 9), (1, 9)), ((2, 9), (3, 14), (1, 11)))[number]
    if number == 0:
        return "None", sizes
    dims = []
    for part in inputs.rstrip(")").split("), "):
        axes = [piece.strip() for piece in part.partition("(")[2].split(",")]
        axes = axes[1:] if part.startswith("r") else axes
        named = [(axis, name) for axis, name in enumerate(axes) if name == "b" or (name == "t" and number == 2)]
        dims.append("{" + ", ".join(f"{axis}: '{name}'" for axis, name in named) + "}")
    return f"({', '.join(dims)},)", sizes
