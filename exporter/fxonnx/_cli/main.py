"""Console script entry point; runs without the optional dependencies of the command line."""

from __future__ import annotations

__all__ = ["main"]

_DEPENDENCIES = ("typer", "rich")


def main() -> None:
    """Run the command line."""
    try:
        from .commands import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _DEPENDENCIES:
            raise
        raise SystemExit(
            f"fxonnx: the command line requires {' and '.join(_DEPENDENCIES)}; install them with: "
            "pip install 'fxonnx[cli]'"
        ) from None
    app()
