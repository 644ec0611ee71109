"""The options ``--input`` and ``--dynamic``: example inputs of given shapes, and dynamic dims."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, did_you_mean

if TYPE_CHECKING:
    import torch

__all__ = ["example_inputs", "named_as_options", "read_dynamic"]

_INPUT = re.compile(r"(?:(?P<name>[^\W\d]\w*)=)?(?P<shape>(?:\d{1,12}(?:,\d{1,12})*,?)?)(?::(?P<dtype>\w+))?")
_DYNAMIC = re.compile(r"(?P<input>.+):(?P<axis>-?\d{1,3})=(?P<name>[^\W\d]\w*)")
_INPUT_HINT = "for example --input 1,3,224,224:float32, once for each input"
_DYNAMIC_HINT = "for example --dynamic x:0=batch"


def example_inputs(texts: Sequence[str]) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Make the example inputs that the options ``--input`` describe; the same ones in each process.

    Floating-point numbers are drawn from 0 to 1, integers are 0 or 1.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    args: list[torch.Tensor] = []
    kwargs: dict[str, torch.Tensor] = {}
    for text in texts:
        found = _INPUT.fullmatch(text.replace(" ", ""))
        if found is None or not (found["shape"] or found["dtype"]):
            raise ArgumentError("--input", f"{text!r} is not [NAME=]SHAPE[:DTYPE]", hint=_INPUT_HINT)
        shape = [int(size) for size in found["shape"].split(",") if size]
        dtype = _dtype(found["dtype"] or "float32", text)
        try:
            tensor = _example(shape, dtype, generator)
        except RuntimeError as error:
            problem = f"{text!r} cannot be made: {str(error).splitlines()[0]}"
            raise ArgumentError("--input", problem, hint=_INPUT_HINT) from error
        if found["name"] in kwargs:
            raise ArgumentError("--input", f"{found['name']!r} is given twice", hint="write each input once")
        if found["name"]:
            kwargs[found["name"]] = tensor
        else:
            args.append(tensor)
    return tuple(args), kwargs


def _dtype(name: str, text: str) -> torch.dtype:
    """The dtype of torch with a name."""
    import torch

    dtype = getattr(torch, name, None)
    if isinstance(dtype, torch.dtype):
        return dtype
    known = [other for other in vars(torch) if isinstance(getattr(torch, other), torch.dtype)]
    hint = did_you_mean(name, known) or "for example float32, float16, int64 or bool"
    raise ArgumentError("--input", f"{text!r}: torch has no dtype {name!r}", hint=hint)


def _example(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """A tensor with some numbers."""
    import torch

    if dtype.is_complex:
        return torch.rand(shape, generator=generator, dtype=torch.complex64).to(dtype)
    if dtype.is_floating_point:
        return torch.rand(shape, generator=generator).to(dtype)
    return torch.randint(2, shape, generator=generator).to(dtype)


def read_dynamic(
    texts: Sequence[str], model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, dict[int, str]]:
    """Return the argument ``dynamic_shapes`` that the options ``--dynamic`` describe."""
    examples = _examples(model, args, kwargs)
    dims: dict[str, dict[int, str]] = {}
    for text in texts:
        found = _DYNAMIC.fullmatch(text)
        if found is None:
            raise ArgumentError("--dynamic", f"{text!r} is not INPUT:AXIS=NAME", hint=_DYNAMIC_HINT)
        name, axis = found["input"], int(found["axis"])
        if examples is not None and name not in examples:
            known = ", ".join(examples)
            hint = did_you_mean(name, examples, f"the inputs are: {known}")
            raise ArgumentError("--dynamic", f"{text!r}: forward has no input {name!r}", hint=hint)
        shape = None if examples is None else getattr(examples[name], "shape", None)
        if shape is not None and not -len(shape) <= axis < len(shape):
            problem = f"{text!r}: {name} has the shape {list(shape)}, and no axis {axis}"
            raise ArgumentError("--dynamic", problem, hint="axes are counted from 0")
        axis = axis if shape is None or axis >= 0 else axis + len(shape)
        if dims.setdefault(name, {}).setdefault(axis, found["name"]) != found["name"]:
            raise ArgumentError("--dynamic", f"axis {axis} of {name} is given twice", hint="give each axis one name")
    return dims


def _examples(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Example inputs by name, those of ``*args`` and ``**kwargs`` of forward under the names of the graph inputs.

    None for a scripted or traced module, whose forward has no signature; its inputs are checked by the export.
    """
    # Without an import of torch; some versions of a script's method have a signature, (*args, **kwargs).
    if type(model.forward).__name__ == "ScriptMethod":
        return None
    signature = inspect.signature(model.forward)
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise ArgumentError("--input", f"forward does not take these inputs: {error}", hint=_INPUT_HINT) from error
    examples: dict[str, Any] = {}
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            examples |= value
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            examples |= {f"{name}_{index}": each for index, each in enumerate(value)}
        else:
            examples[name] = value
    return examples


@contextmanager
def named_as_options(inputs: Sequence[str], dynamic: Sequence[str]) -> Iterator[None]:
    """Name the options in errors about the arguments that were made of them."""
    try:
        yield
    except ArgumentError as error:
        beginning = re.match(r"\w*", error.argument)
        name = "" if beginning is None else beginning[0]
        option = {"args": "--input", "kwargs": "--input", "dynamic_shapes": "--dynamic"}.get(name)
        if option is None or not (dynamic if option == "--dynamic" else inputs):
            raise
        raise ArgumentError(option, error.message.removeprefix(f"{error.argument}: "), hint=error.hint) from error
