"""Checks of the arguments of ``export`` that need no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fxonnx_translations.registry import Registry

from .errors import ArgumentError
from .lower.model import NEWEST_OPSET, OLDEST_OPSET

__all__ = ["check_names", "check_opset", "check_table"]


def check_opset(opset_version: int | None, default: int) -> int:
    """The target opset.

    Raises:
        ArgumentError: If it is not one that fxonnx writes.
    """
    if opset_version is None:
        return default
    # bool first: it is a subclass of int.
    if isinstance(opset_version, bool) or not isinstance(opset_version, int):
        raise ArgumentError("opset_version", f"expected an int, got {opset_version!r}")
    if not OLDEST_OPSET <= opset_version <= NEWEST_OPSET:
        raise ArgumentError(
            "opset_version",
            f"{opset_version} is outside the opsets that can be written",
            hint=f"pass a number from {OLDEST_OPSET} to {NEWEST_OPSET}, or nothing for {default}",
        )
    return opset_version


def check_names(
    input_names: Sequence[str] | None, output_names: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Input and output names.

    Raises:
        ArgumentError: If a name is no string, is empty, or is given twice.
    """
    inputs = _names("input_names", input_names)
    outputs = _names("output_names", output_names)
    both = sorted(set(inputs) & set(outputs))
    if both:
        raise ArgumentError(
            "output_names", f"{both[0]!r} is the name of an input, too", hint="values need unique names"
        )
    return inputs, outputs


def _names(argument: str, names: Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return ()
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ArgumentError(argument, f"expected a list of strings, got {names!r}", hint=f"write [{names!r}]")
    for name in names:
        if not isinstance(name, str) or not name:
            raise ArgumentError(argument, f"expected non-empty strings, got {name!r}")
        if names.count(name) > 1:
            raise ArgumentError(argument, f"{name!r} is given twice", hint="values need unique names")
    return tuple(names)


def check_table(registry: Registry, table: Mapping[Callable[..., Any], Callable[..., Any]] | None) -> Registry:
    """The registry with the user's translations in front.

    Raises:
        ArgumentError: If a key is not an operator overload or a value not a function.
    """
    if not table:
        return registry
    for target, function in table.items():
        if isinstance(target, torch._ops.OpOverloadPacket):
            raise ArgumentError(
                "custom_translation_table",
                f"the key {target} is an overload packet",
                hint=f"name the overload, such as torch.ops.{target}.default",
            )
        if not callable(target):
            raise ArgumentError("custom_translation_table", f"the key {target!r} is not an operator")
        functions: Any = list(function) if isinstance(function, (list, tuple)) else [function]
        if not functions or not all(map(callable, functions)):
            raise ArgumentError(
                "custom_translation_table",
                f"the value for {target} is a {type(function).__name__}, not a function or a list of functions",
            )
    return registry.extended(table)
