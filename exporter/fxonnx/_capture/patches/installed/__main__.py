"""``python -m fxonnx._capture.patches.installed``: record the parameters of all targets in the installed versions."""

from __future__ import annotations

import contextlib
import importlib
import json
from typing import Any

from packaging.version import Version

from ..table import all_patches
from . import SIGNATURES, installed_version


def main() -> None:
    """Add the parameters of the installed versions to those recorded, in this directory."""
    contents: dict[str, dict[str, Any]] = json.loads(SIGNATURES.read_text())
    recorded, versions = contents["parameters"], contents["versions"]
    for library, newest in versions.items():
        found = installed_version(library)
        if found is not None and found.release > Version(newest).release:
            versions[library] = found.base_version
    for patch in all_patches():
        if "::" not in patch.target:
            with contextlib.suppress(ImportError, RuntimeError):  # a library that is not installed, or fails
                importlib.import_module(patch.target.partition(":")[0])
        try:
            parameters = patch.parameters()
        except (AttributeError, ImportError, RuntimeError):
            print(f"missing: {patch.target}")  # noqa: T201 - a command line tool
            continue
        if parameters:
            recorded[patch.target] = sorted({*recorded.get(patch.target, ()), parameters})
    SIGNATURES.write_text(json.dumps(contents, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
