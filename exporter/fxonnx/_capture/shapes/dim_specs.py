"""Specs of dims (a name, a ``Dim`` or a dim hint), and the labels of dims in messages."""

from __future__ import annotations

from typing import Any

from torch.export import Dim

__all__ = ["DimHint", "DimSpec", "dim_expression", "dim_label", "is_auto", "name_of_spec", "root_name"]

DimHint = type(Dim.DYNAMIC)
"""The type of ``Dim.AUTO``, ``Dim.DYNAMIC`` and ``Dim.STATIC``, which has no public name in torch."""

DimSpec = Any
"""A name (str), a ``Dim`` or a ``DimHint``."""


def is_auto(spec: DimSpec) -> bool:
    """Whether a spec is ``Dim.AUTO``, which allows a dim to be dynamic without requesting it."""
    return isinstance(spec, DimHint) and spec.type == Dim.AUTO.type


def name_of_spec(spec: DimSpec) -> str | None:
    """The dim name of a spec; None for hints and for derived Dims, whose name is an expression."""
    if isinstance(spec, str):
        return spec
    return str(spec.__name__) if isinstance(spec, Dim) and getattr(spec, "root", None) is None else None


def root_name(spec: DimSpec) -> str | None:
    """The name of a Dim, or of the Dim that it is derived from; None for other specs."""
    return str(getattr(spec, "root", spec).__name__) if isinstance(spec, Dim) else None


def dim_label(label: str, axis: int | None) -> str:
    """Label of a dim in messages: ``x axis 0``; the label of the input itself for the value of an int."""
    return label if axis is None else f"{label} axis {axis}"


def dim_expression(label: str, axis: int | None) -> str:
    """Name of a dim without a user's name: ``x.shape[0]``."""
    return label if axis is None else f"{label}.shape[{axis}]"
