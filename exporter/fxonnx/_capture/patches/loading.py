"""Patches of ``torch.export.load``, so that a file is data: nothing in it is executed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..._archives import read_program, refuse_compiled_code
from . import tracing_state
from .patch import Patch, PatchKind, ValuePatch, applied

__all__ = ["LOADING_PATCHES", "loading_patches"]

LOADING_PATCHES: tuple[Patch, ...] = (
    Patch(
        "torch:load",
        tracing_state.load_weights_only,
        "torch.export.load unpickles older files without restrictions",
        PatchKind.SOUND,
    ),
    ValuePatch(
        "torch.export.pt2_archive._package:pickle",
        tracing_state.RestrictedPickle,
        "torch.export.load unpickles the entries that a file marks as pickled",
        PatchKind.SOUND,
    ),
    Patch(
        "torch._export.serde.serialize:_bytes_to_dataclass",
        read_program,
        "torch.export.load evaluates, compiles and imports texts of the file",
        PatchKind.SOUND,
    ),
    Patch(
        "torch.export.pt2_archive._package:_load_aoti",
        refuse_compiled_code,
        "torch.export.load loads shared libraries of the file",
        PatchKind.SOUND,
    ),
)
"""Applied by torch.export.load, since the command line loads files from untrusted sources."""


@contextmanager
def loading_patches() -> Iterator[None]:
    """Apply ``LOADING_PATCHES`` for this thread, under the lock."""
    with applied(LOADING_PATCHES):
        yield
