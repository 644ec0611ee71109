"""Private names of torch that a feature needs, and a plain export does not: their absence only ends the feature."""

from __future__ import annotations

import importlib
from typing import Any, NoReturn

import torch

__all__ = ["MissingNameError", "find_name", "find_names", "is_missing"]


class MissingNameError(RuntimeError):
    """A feature needs a private name that the installed torch does not have."""


class _Missing(type):
    """Class of the stand-ins: they can be base classes and operands of ``isinstance`` and ``except``, but not used."""

    target: str

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise MissingNameError(
            f"torch {torch.__version__} does not have {cls.target}, which fxonnx needs for this model"
        )

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # asked by Python itself, which expects an AttributeError
            raise AttributeError(name)
        return _stand_in(f"{cls.target}.{name}")


def _stand_in(target: str) -> Any:
    return _Missing("Missing", (Exception,), {"target": target})


def find_name(target: str, default: Any = None) -> Any:
    """The object ``package.module:Class.name``; the default, or else a stand-in that raises where it is called."""
    module, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split(".") if path else ():
            found = getattr(found, name)
    except (AttributeError, ImportError):
        return _stand_in(target.replace(":", ".")) if default is None else default
    return found


def find_names(*targets: str) -> tuple[Any, ...]:
    """Those of the objects that exist."""
    return tuple(found for found in map(find_name, targets) if not is_missing(found))


def is_missing(found: object) -> bool:
    """Whether an object is a stand-in."""
    return isinstance(found, _Missing)
