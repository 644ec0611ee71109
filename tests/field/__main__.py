"""``python -m tests.field``: judge models of the field, store their results, and write docs/field.md."""

from __future__ import annotations

import argparse
import multiprocessing
import re
from collections.abc import Sequence

from .catalog import rows
from .judge import EXPORTERS
from .page import write
from .row import Row
from .stored import keep, known, prune
from .worker import prepare, run


def main() -> None:
    """Judge the chosen rows and store each result as it comes."""
    parser = argparse.ArgumentParser(prog="python -m tests.field", description=__doc__)
    parser.add_argument("--only", help="a regular expression, found in library/model")
    parser.add_argument("--missing", action="store_true", help="only rows without a result, or that were not right")
    parser.add_argument("--refresh", action="store_true", help="run torch's exporters where their results are unknown")
    parser.add_argument("--jobs", type=int, default=2, help="rows at the same time")
    arguments = parser.parse_args()
    chosen = [each for each in rows() if re.search(arguments.only or "", each.key)]
    prepare()
    context = multiprocessing.get_context("fork")
    parts = [
        context.Process(target=_judge_part, args=(chosen[first :: arguments.jobs], arguments))
        for first in range(arguments.jobs)
    ]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    for exporter in EXPORTERS if arguments.only is None else ():
        prune(exporter, {each.key for each in rows()})
    write()


def _judge_part(chosen: Sequence[Row], arguments: argparse.Namespace) -> None:
    _judge(chosen, "fxonnx", again=not arguments.missing)
    for exporter in EXPORTERS[1:] if arguments.refresh else ():
        _judge(chosen, exporter, again=False)


def _judge(chosen: Sequence[Row], exporter: str, *, again: bool) -> None:
    for each in chosen:
        stored = known(exporter).get(each.key)
        if stored is not None and not again and (exporter != "fxonnx" or stored.verdict == "right"):
            continue
        result = run(each, exporter)
        print(
            f"{exporter} {each.key:45} {result.verdict:10} {result.seconds} {result.capture} {result.text}", flush=True
        )
        if result.verdict != "invalid":  # of the row itself
            keep(exporter, each.key, result)


if __name__ == "__main__":
    main()
