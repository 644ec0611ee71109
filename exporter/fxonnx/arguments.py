"""Checks of the arguments of ``export`` that need no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from fxonnx_translations.registry import Registry
from fxonnx_translations.torch_compat import OpOverloadPacket

from .errors import ArgumentError
from .lower.model import NEWEST_IR_VERSION, NEWEST_OPSET, OLDEST_OPSET, ir_versions
from .options import check_choice
from .prepare import PATTERNS

__all__ = ["Form", "Target", "check_form", "check_names", "check_table"]


Target: TypeAlias = Literal["onnxruntime"]

_DEFAULT_OPSETS: Mapping[Target | None, int] = MappingProxyType({None: 20, "onnxruntime": 23})


@dataclass(frozen=True)
class Form:
    """What the model is written in.

    Attributes:
        opset: Version of the default domain.
        ir_version: Version of the file format.
        rules: Names of the rules about operators that are written out, in their order.
    """

    opset: int
    ir_version: int
    rules: tuple[str, ...]


def check_form(opset: Any, ir_version: Any, target: Any, patterns: Mapping[str, bool] | None) -> Form:
    """What the model is to be written in.

    Args:
        opset: The user's ``opset_version``.
        ir_version: The user's.
        target: The user's.
        patterns: The user's, or None for no rules at all.

    Raises:
        ArgumentError: If an argument has no such value, or the IR version is too old for the opset.
    """
    check_choice("target", target, (None, *get_args(Target)))
    opset = _check_opset(opset, _DEFAULT_OPSETS[target])
    return Form(opset, _check_ir_version(ir_version, opset), _check_patterns(patterns, opset, target))


def _check_ir_version(ir_version: Any, opset: int) -> int:
    default, least = ir_versions(opset)
    if ir_version is None:
        return default
    if isinstance(ir_version, bool) or not isinstance(ir_version, int):
        raise ArgumentError("ir_version", f"expected an int, got {ir_version!r}")
    if not least <= ir_version <= NEWEST_IR_VERSION:
        raise ArgumentError(
            "ir_version",
            f"{ir_version} can not be written: opset {opset} needs {least}, and the newest is {NEWEST_IR_VERSION}",
            hint=f"pass a number from {least} to {NEWEST_IR_VERSION}, or nothing for {default}",
        )
    return ir_version


def _check_patterns(patterns: Any, opset: int, target: str | None) -> tuple[str, ...]:
    if patterns is None:
        return ()
    if not isinstance(patterns, Mapping):
        raise ArgumentError(
            "patterns", f"expected a dict from name to True or False, got {patterns!r}", hint='write {"gelu": False}'
        )
    unknown = [name for name in patterns if name not in PATTERNS]
    if unknown:
        raise ArgumentError("patterns", f"there is no rule {unknown[0]!r}", hint=f"there are {', '.join(PATTERNS)}")
    return tuple(name for name, rule in PATTERNS.items() if patterns.get(name, rule.is_for(opset, target)))


def _check_opset(opset_version: int | None, default: int) -> int:
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
        if isinstance(target, OpOverloadPacket):
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
