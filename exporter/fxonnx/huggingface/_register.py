"""``register``: make the exporter a backend of ``transformers.exporters``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import ExportError
from ._extra import import_extra

__all__ = ["register"]


def register() -> type[Any]:
    """Register the export format "fxonnx" with ``transformers.exporters``, which transformers has from version 5 on.

    Afterwards ``AutoHfExporter.from_config({"export_format": "fxonnx"})`` returns an exporter, and
    ``ExportedModel.from_pretrained`` loads its directories. Further calls change nothing.

    Returns:
        The class of the exporter; its ``config_class`` has the options.

    Raises:
        ExportError: If transformers is not installed, or has no ``transformers.exporters``.
    """
    transformers = import_extra("transformers")
    try:
        auto = import_module("transformers.exporters.auto")
    except ModuleNotFoundError as error:
        problem = f"transformers {transformers.__version__} has no transformers.exporters"
        raise ExportError(problem, hint="pip install -U transformers") from error
    backend = import_module(f"{__package__}._backend")
    if backend.FORMAT not in auto.EXPORT_BACKENDS:
        auto.register_backend(backend.FxonnxExporter, backend.FxonnxRunner)
    exporter: type[Any] = backend.FxonnxExporter
    return exporter
