"""``python -m fxonnx._capture.patches.installed``: record the parameters of all targets in the installed versions."""

from __future__ import annotations

import contextlib
import importlib
import json

from ..table import all_patches
from .signatures import SIGNATURES


def main() -> None:
    """Add the parameters of the installed versions to those recorded, in this directory."""
    recorded: dict[str, list[str]] = json.loads(SIGNATURES.read_text()) if SIGNATURES.exists() else {}
    for patch in all_patches():
        if "::" not in patch.target:
            with contextlib.suppress(ImportError, RuntimeError):  # a library that is not installed, or fails
                importlib.import_module(patch.target.partition(":")[0])
        try:
            parameters = patch.parameters()
        except (AttributeError, ImportError):
            print(f"missing: {patch.target}")  # noqa: T201 - a command line tool
            continue
        if parameters:
            recorded[patch.target] = sorted({*recorded.get(patch.target, ()), parameters})
    SIGNATURES.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
