"""Progress of exports, saves and verifications on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .._display import printable
from .._progress import Unit, observing_counts

__all__ = ["bytes_text", "showing_progress"]


@contextmanager
def showing_progress(console: Console, stages: Sequence[str] = ()) -> Iterator[Callable[[str], None]]:
    """Show the current stage with a bar and the elapsed time, and the remaining time where the total is known."""
    current = "starting"
    columns = TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(current, total=None)

        def on_count(unit: Unit, done: int, total: int | None) -> None:
            # Sessions of other stages also write models.
            if current.partition(" ")[0] in _STAGES[unit] and total != 0:
                text = _described(current, unit, done, total)
                progress.update(task, description=escape(printable(text)), completed=done, total=total)

        def on_stage(stage: str) -> None:
            nonlocal current
            current = stage
            number = f" ({stages.index(stage) + 1} of {len(stages)})" if stage in stages else ""
            progress.reset(task, total=None, description=escape(printable(f"{stage}{number}")))

        with observing_counts(on_count):
            yield on_stage


# A stage "export" is a whole export, without its file.
_STAGES: Mapping[Unit, Sequence[str]] = MappingProxyType(
    {"bytes": ("save",), "sizes": ("verify",), "attempts": ("capture", "export")}
)


def _described(stage: str, unit: Unit, done: int, total: int | None) -> str:
    if unit == "bytes":
        return f"{stage.replace('save', 'saving', 1)} {bytes_text(done, total or done)}"
    return f"{stage}: size {done} of {total}" if unit == "sizes" else f"{stage}: attempt {done}"


def bytes_text(written: int, total: int) -> str:
    """Two numbers of bytes in the unit of the second one: ``1.2 / 4.7 GB``."""
    unit, name = next(((unit, name) for unit, name in ((10**9, "GB"), (10**6, "MB")) if total >= unit), (10**3, "kB"))
    return f"{written / unit:.1f} / {total / unit:.1f} {name}"
