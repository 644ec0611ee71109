"""``python -m tests.superset``: the programs that torch exports right and fxonnx does not, and the counts."""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from .catalog import programs
from .judge import Verdict
from .program import SALT, Program
from .stored import known_verdicts, store, store_open
from .worker import Worker

_PATHS = re.compile(r"/\S+superset_\d+\S*")


def main() -> None:
    """Judge programs and print the findings."""
    arguments = _arguments()
    if arguments.salt:
        os.environ[SALT] = arguments.salt
    chosen = [each for each in programs() if not arguments.family or each.family in arguments.family]
    chosen = (
        [each for each in chosen if each.name in arguments.names] if arguments.names else chosen[: arguments.programs]
    )
    cached = json.loads(arguments.ours.read_text()) if arguments.ours and arguments.ours.exists() else {}
    ours = {name: Verdict(**verdict) for name, verdict in cached.items()}

    def keep(name: str, verdict: Verdict) -> None:
        ours[name] = verdict
        if arguments.ours and len(ours) % 50 == 0:
            _write(arguments.ours, ours)

    missing = [each for each in chosen if each.name not in ours]
    _judge_all(missing, "fxonnx", arguments.jobs, keep)
    if arguments.ours:
        _write(arguments.ours, ours)
    if arguments.salt:
        _print_other(chosen, ours, arguments)
        return
    if arguments.refresh:
        _refresh(chosen, ours, arguments)
    if arguments.open:
        _write_open(chosen, ours)
    _print(chosen, ours, arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.superset", description=__doc__)
    parser.add_argument("names", nargs="*", help="names of programs; their source is printed as well")
    parser.add_argument("--programs", type=int, default=None, help="the first programs of the catalog; by default all")
    parser.add_argument("--family", action="append", help="only programs of a family; may be given again")
    parser.add_argument("--refresh", action="store_true", help="run torch's exporters where their verdicts are unknown")
    parser.add_argument("--again", action="store_true", help="with --refresh: also where they are known")
    parser.add_argument(
        "--minutes", type=float, default=40.0, help="the time of --refresh for programs that fxonnx exports right"
    )
    parser.add_argument("--open", action="store_true", help="write the findings to open.txt")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--ours", type=Path, help="a file that keeps the verdicts of fxonnx; programs in it are not run again"
    )
    parser.add_argument(
        "--salt", help="select other programs; torch's exporters run those that fxonnx does not export right"
    )
    parser.add_argument("--show", action="store_true", help="print the source of each finding")
    return parser.parse_args()


def _write(path: Path, ours: dict[str, Verdict]) -> None:
    path.write_text(json.dumps({name: vars(verdict) for name, verdict in sorted(ours.items())}, indent=0))


def _judge_all(
    chosen: Sequence[Program],
    exporter: str,
    jobs: int,
    keep: Callable[[str, Verdict], None],
    minutes: float | None = None,
) -> None:
    """Judge programs in several processes, for some minutes at most."""
    waiting: queue.SimpleQueue[Program] = queue.SimpleQueue()
    for program in chosen:
        waiting.put(program)
    end = None if minutes is None else time.monotonic() + 60 * minutes
    lock = threading.Lock()

    def run() -> None:
        with Worker() as worker:
            while end is None or time.monotonic() < end:
                try:
                    program = waiting.get_nowait()
                except queue.Empty:
                    return
                verdict = worker.judge(program, exporter)
                with lock:
                    keep(program.name, verdict)

    threads = [threading.Thread(target=run) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _refresh(chosen: Sequence[Program], ours: dict[str, Verdict], arguments: argparse.Namespace) -> None:
    """Run torch's exporters: all programs through TorchScript, which is fast, and through torch.export as time allows."""
    verdicts = known_verdicts()
    if arguments.again:
        for program in chosen:
            for found in verdicts.values():
                found.pop(program.name, None)

    def keeper(exporter: str) -> Callable[[str, Verdict], None]:
        def keep(name: str, verdict: Verdict) -> None:
            verdicts[exporter][name] = verdict.kind
            if len(verdicts[exporter]) % 50 == 0:
                store(verdicts, programs())

        return keep

    def run(exporter: str, some: Sequence[Program], minutes: float | None = None) -> None:
        unknown = [each for each in some if each.name not in verdicts[exporter]]
        _judge_all(unknown, exporter, arguments.jobs, keeper(exporter), minutes)
        store(verdicts, programs())

    valid = [each for each in chosen if ours[each.name].kind != "invalid"]
    run("torchscript", valid)
    # First those that may be findings and are not yet.
    order = [
        [each for each in valid if ours[each.name].kind != "right" and verdicts["torchscript"][each.name] != "right"],
        [each for each in valid if ours[each.name].kind != "right"],
    ]
    for some in order:
        run("dynamo", some)
    run("dynamo", valid, arguments.minutes)


def _print_other(chosen: Sequence[Program], ours: dict[str, Verdict], arguments: argparse.Namespace) -> None:
    """Print the programs of another salt that either exporter of torch exports right and fxonnx does not."""
    open_programs = [each for each in chosen if ours[each.name].kind not in ("right", "invalid")]
    theirs: dict[str, dict[str, Verdict]] = {"torchscript": {}, "dynamo": {}}
    for exporter, found in theirs.items():
        right = {name for known in theirs.values() for name, verdict in known.items() if verdict.kind == "right"}
        unknown = [each for each in open_programs if each.name not in right]
        _judge_all(unknown, exporter, arguments.jobs, found.__setitem__)
    kinds = Counter(ours[each.name].kind for each in chosen)
    for program in open_programs:
        own = ours[program.name]
        right_in = [exporter for exporter, found in theirs.items() if found.get(program.name, own).kind == "right"]
        if right_in or own.kind == "wrong":
            print(
                f"{program.name:20} {own.kind}: {own.text[:200]}\n{'':20} right in {', '.join(right_in) or 'neither'}"
            )
            print(program.text + "\n")
    print(f"{len(chosen)} programs; fxonnx: {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}")


def _write_open(chosen: Sequence[Program], ours: dict[str, Verdict]) -> None:
    verdicts = known_verdicts()
    right = {name for found in verdicts.values() for name, kind in found.items() if kind == "right"}
    found = {each.name: ours[each.name] for each in chosen if each.name in right and ours[each.name].kind != "right"}
    texts = {
        name: f"{verdict.kind}: {_PATHS.sub('...', verdict.text)[:120]}".strip() for name, verdict in found.items()
    }
    store_open(texts, [each.name for each in chosen])


def _print(chosen: Sequence[Program], ours: dict[str, Verdict], arguments: argparse.Namespace) -> None:
    verdicts = known_verdicts()
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for program in chosen:
        own = ours[program.name]
        kinds[own.kind] += 1
        theirs = {exporter: found.get(program.name, "unknown") for exporter, found in verdicts.items()}
        is_right = "right" in theirs.values()
        if own.kind == "invalid":
            continue
        if own.kind != "right" and (is_right or arguments.names):
            print(f"{program.name:20} {own.kind}: {own.text[:200]}")
            print(f"{'':20} {', '.join(f'{exporter} {kind}' for exporter, kind in theirs.items())}")
        if arguments.names or (arguments.show and is_right and own.kind != "right"):
            print(program.text + "\n")
        counts["known of dynamo"] += theirs["dynamo"] != "unknown"
        counts["known of torchscript"] += theirs["torchscript"] != "unknown"
        counts["theirs right and ours not"] += is_right and own.kind != "right"
        counts["both right"] += is_right and own.kind == "right"
        if own.kind == "right":
            for exporter, kind in theirs.items():
                counts[f"ours right and {exporter} not"] += kind not in ("right", "unknown")
            counts["ours right and neither of theirs"] += not is_right and "unknown" not in theirs.values()
    print(f"{len(chosen)} programs; fxonnx: {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}")
    for text, count in counts.items():
        print(f"{count:6} {text}")


if __name__ == "__main__":
    main()
