"""Registry of user symbolic functions, with the interface of ``torch.onnx.register_custom_op_symbolic``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

import torch

from .._public import public
from ..errors import ArgumentError, did_you_mean, kind_of
from .applies import REGISTERED
from .user_symbolics import SymbolicFunction

__all__ = ["register_custom_op_symbolic", "registered_symbolics", "unregister_custom_op_symbolic"]

_LOCK = Lock()
_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*::[A-Za-z_]\w*")


@public
def register_custom_op_symbolic(symbolic_name: str, symbolic_fn: Callable[..., Any], opset_version: int) -> None:
    """Register a symbolic function that translates an operator in all later exports.

    Args:
        symbolic_name: ``namespace::operator``; applies to all of its overloads.
        symbolic_fn: ``function(g, *inputs)`` that returns the values made by ``g.op(...)``.
        opset_version: The lowest opset it supports. An export uses the registration with the highest supported one.

    Raises:
        ArgumentError: If the name is not of the form ``namespace::operator``, or ``symbolic_fn`` is not callable.
    """
    _check_name(symbolic_name)
    if not callable(symbolic_fn):
        raise ArgumentError("symbolic_fn", f"expected a function, got {kind_of(symbolic_fn)}")
    with _LOCK:
        _replace({**_registered(), (symbolic_name, int(opset_version)): symbolic_fn})


@public
def unregister_custom_op_symbolic(symbolic_name: str, opset_version: int) -> None:
    """Remove a registration of ``register_custom_op_symbolic``.

    Raises:
        ArgumentError: If nothing is registered for this name and opset.
    """
    _check_name(symbolic_name)
    with _LOCK:
        rest = dict(_registered())
        if rest.pop((symbolic_name, int(opset_version)), None) is None:
            raise ArgumentError(
                "symbolic_name",
                f"nothing is registered for {symbolic_name!r} from opset {opset_version} on",
                hint=did_you_mean(symbolic_name, {name for name, _ in rest}),
            )
        _replace(rest)


def registered_symbolics(opset: int) -> dict[Callable[..., Any], Any]:
    """Map each overload to its registered symbolic function with the highest supported opset up to ``opset``."""
    table: dict[Callable[..., Any], Any] = {}
    for (name, since), function in sorted(_registered().items(), key=lambda item: item[0]):
        if since <= opset:
            namespace, _, operator = name.partition("::")
            packet: Any = getattr(getattr(torch.ops, namespace), operator, None)
            names = packet.overloads() if hasattr(packet, "overloads") else ()
            table.update((getattr(packet, overload), SymbolicFunction(function)) for overload in names)
    return table


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ArgumentError(
            "symbolic_name", f"{name!r} is not the name of an operator", hint="write namespace::operator"
        )


def _registered() -> Mapping[tuple[str, int], Callable[..., Any]]:
    return getattr(torch.onnx, REGISTERED, {})


def _replace(registered: Mapping[tuple[str, int], Callable[..., Any]]) -> None:
    setattr(torch.onnx, REGISTERED, registered)
