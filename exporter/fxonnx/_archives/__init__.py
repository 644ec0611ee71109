"""Contents of ``.pt2`` files, checked before torch reads them: torch.export.load evaluates texts of the file."""

from __future__ import annotations

from .contents import UnsafeContentError, check_archive_size, read_program, refuse_compiled_code

__all__ = ["UnsafeContentError", "check_archive_size", "read_program", "refuse_compiled_code"]
