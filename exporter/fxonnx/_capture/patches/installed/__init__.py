"""The installed versions of torch and of the libraries, compared with the versions with which fxonnx is tested.

A row for reach or speed whose target is missing is skipped with one warning in each process. Without a row for
soundness, a result could be silently wrong: the export is refused, unless the environment variable
``FXONNX_UNTESTED_TORCH`` is ``warn``.
"""

from __future__ import annotations

import enum
import inspect
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from packaging.version import Version

from ...._warnings import warn_user
from ....errors import UntestedTorchError

__all__ = [
    "ORIGINAL",
    "SIGNATURES",
    "MissingTarget",
    "PatchKind",
    "distribution_of",
    "installed_version",
    "is_newer",
    "parameters_of",
    "recorded_parameters",
    "recorded_versions",
    "report_missing",
]


ORIGINAL = "_fxonnx_original"
"""Attribute of a replacement: the function that it replaces."""

SIGNATURES = Path(__file__).with_name("signatures.json")
"""The parameters of the targets, and the newest tested version of each library.

``python -m fxonnx._capture.patches.installed`` adds the installed versions'.
"""


@cache
def _recorded() -> Mapping[str, Mapping[str, Any]]:
    found: Mapping[str, Mapping[str, Any]] = json.loads(SIGNATURES.read_text())
    return found


def recorded_parameters() -> Mapping[str, list[str]]:
    """Target to the parameters that it has in tested versions."""
    return _recorded()["parameters"]


def recorded_versions() -> Mapping[str, str]:
    """Library to the newest version with which the suite has been run."""
    return _recorded()["versions"]


def parameters_of(function: Any) -> str:
    """The parameters of a Python function as in its definition, without defaults; "" for other objects."""
    while not isinstance(function, FunctionType) or ORIGINAL in function.__dict__:
        inner = getattr(function, ORIGINAL, None) or getattr(function, "__func__", None)
        if inner is None:
            return ""
        function = inner
    return _parameters_of_code(function.__code__)


def _parameters_of_code(code: CodeType) -> str:
    names = list(code.co_varnames)
    positional, names = names[: code.co_argcount], names[code.co_argcount :]
    keyword, names = names[: code.co_kwonlyargcount], names[code.co_kwonlyargcount :]
    if code.co_flags & inspect.CO_VARARGS:
        positional.append(f"*{names.pop(0)}")
    elif keyword:
        positional.append("*")
    if code.co_flags & inspect.CO_VARKEYWORDS:
        keyword.append(f"**{names.pop(0)}")
    return ", ".join((*positional, *keyword))


VARIABLE = "FXONNX_UNTESTED_TORCH"


class PatchKind(enum.Enum):
    """The loss where the target of a patch is missing."""

    SOUND = "sound"
    """A result may be silently wrong."""
    REACH = "reach"
    """Some models are refused, or some of their dims are static."""
    SPEED = "speed"
    """An export takes longer."""


@dataclass(frozen=True)
class MissingTarget:
    """A row of the tables whose target is missing.

    Attributes:
        target: The target, ``package.module:Class.name``.
        kind: The loss without the row.
        why: The reason for the row.
        problem: "does not exist", or the parameters that differ.
    """

    target: str
    kind: PatchKind
    why: str
    problem: str

    def __str__(self) -> str:
        return f"{self.target.replace('::', '.').replace(':', '.')} {self.problem} ({self.why})"


def distribution_of(target: str) -> str:
    """The library with a target; operators are torch's."""
    return "torch" if "::" in target else target.partition(":")[0].partition(".")[0]


@cache
def installed_version(distribution: str) -> Version | None:
    """The version of an installed distribution; None if there is none of this name."""
    try:
        return Version(version(distribution))
    except PackageNotFoundError:
        return None


@cache
def is_newer(distribution: str) -> bool:
    """Whether the installed version is newer than those with which the suite has been run, or unknown.

    The targets of older ones are known: they may differ in the newest version, or be absent from it.
    """
    found, newest = installed_version(distribution), recorded_versions().get(distribution)
    return found is None or newest is None or found.release > Version(newest).release


def report_missing(missing: Sequence[MissingTarget]) -> None:
    """Warn about rows that are skipped, once in each process."""
    sound = [one for one in missing if one.kind is PatchKind.SOUND]
    if sound and os.environ.get(VARIABLE) != "warn":
        newest = recorded_versions()["torch"]
        tested = f"fxonnx {installed_version('fxonnx')} is tested with torch 2.13 to {newest}; "
        subject = f"{tested if is_newer('torch') else ''}{_owners(sound)} lacks functions"
        raise UntestedTorchError(
            f"{subject} that fxonnx replaces so that no result is silently wrong:\n"
            + "\n".join(f"  {one}" for one in sound),
            hint=f"install torch {newest} or a newer fxonnx; {VARIABLE}=warn exports nevertheless, compares the file "
            "with the model, and marks every constraint as unproved",
        )
    lost = {
        PatchKind.SOUND: "constraints may be missed and results silently wrong",
        PatchKind.REACH: "some models are refused, or their dims are static",
        PatchKind.SPEED: "exports take longer",
    }
    for kind, consequence in lost.items():
        skipped = tuple(one for one in missing if one.kind is kind)
        if skipped:
            _warn_once(skipped, consequence)


@cache
def _warn_once(missing: tuple[MissingTarget, ...], consequence: str) -> None:
    lines = "\n".join(f"  {one}" for one in missing)
    warn_user(
        f"{_owners(missing)} lacks functions that fxonnx replaces; without these patches, {consequence}:\n{lines}"
    )


def _owners(missing: Iterable[MissingTarget]) -> str:
    """The libraries with the targets, and their versions."""
    names = sorted({distribution_of(one.target) for one in missing})
    return " and ".join(f"{name} {installed_version(name) or ''}".rstrip() for name in names)
