"""Progress of exports and saves on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from .._written_bytes import observing_bytes

__all__ = ["bytes_text", "showing_progress"]


@contextmanager
def showing_progress(console: Console, stages: Sequence[str] = ()) -> Iterator[Callable[[str], None]]:
    """Show the current stage: a spinner, or a bar for known stages; while a model is saved, also the bytes written.

    Args:
        console: A terminal.
        stages: The names of all stages in order, if they are known.

    Yields:
        A function to be called with the name of each stage as it begins.
    """
    current = "starting"
    with ExitStack() as stack:
        if stages:
            progress = stack.enter_context(Progress(console=console, transient=True))
            task = progress.add_task(current, total=len(stages))

            def describe(text: str) -> None:
                completed = stages.index(current) if current in stages else None
                progress.update(task, description=escape(text), completed=completed)
        else:
            status = stack.enter_context(console.status(current))

            def describe(text: str) -> None:
                status.update(escape(text))

        def on_bytes(written: int, total: int) -> None:
            # Sessions of other stages also write models.
            if current == "save":
                describe(f"saving {bytes_text(written, total)}")

        def on_stage(stage: str) -> None:
            nonlocal current
            current = stage
            describe(stage)

        stack.enter_context(observing_bytes(on_bytes))
        yield on_stage


def bytes_text(written: int, total: int) -> str:
    """Two numbers of bytes in the unit of the second one: ``1.2 / 4.7 GB``."""
    unit, name = next(((unit, name) for unit, name in ((10**9, "GB"), (10**6, "MB")) if total >= unit), (10**3, "kB"))
    return f"{written / unit:.1f} / {total / unit:.1f} {name}"
