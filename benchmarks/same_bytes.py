"""Whether another revision exports the same files: the networks of the zoo, by this tree and by that of a revision.

    python -m benchmarks.same_bytes 7e8c793 [--models resnet50,swin_t] [--repeats 1] [--json bytes.json]

Each network is exported with static and with dynamic sizes, in turn by a worker with the sources of this tree and by
one with the sources of the revision, checked out to a temporary folder. The saved files are compared by their checksum.
Times are the smallest CPU seconds of an export over the repeats; with one repeat they are noise.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ._output import write_json

_TREE = Path(__file__).resolve().parents[1]


def _export(name: str, *, dynamic: bool) -> dict[str, Any]:
    import torch

    from ._exporters import ours, silenced
    from ._zoo import ZOO

    torch.manual_seed(0)
    network = ZOO[name]()
    gc.collect()
    start = time.process_time()
    with silenced():
        program = ours(network, dynamic=dynamic)
    seconds = time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        program.save(path)
        return {"checksum": hashlib.sha256(path.read_bytes()).hexdigest(), "seconds": seconds}


def _serve() -> None:
    """Export the network named in each line of the standard input; results go to the standard output."""
    for line in sys.stdin:
        name, dynamic = json.loads(line)
        print(json.dumps(_export(name, dynamic=dynamic)), flush=True)


class _Exports:
    """A process that exports with the sources of a tree."""

    def __init__(self, tree: Path) -> None:
        sources = os.pathsep.join(str(tree / folder) for folder in ("exporter", "translations"))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.same_bytes", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_TREE,
            env={**os.environ, "PYTHONPATH": sources, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        )

    def export(self, name: str, *, dynamic: bool) -> dict[str, Any]:
        """The checksum of a file and the seconds of its export."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process has no pipes")
        print(json.dumps([name, dynamic]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the export of {name} ended the process")
        result: dict[str, Any] = json.loads(line)
        return result


@contextmanager
def _checked_out(revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision], cwd=_TREE, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        yield Path(folder)


def compare(revision: str, names: Sequence[str], repeats: int) -> list[dict[str, Any]]:
    """One row for each network and kind of sizes, with both checksums and times."""
    rows = []
    with _checked_out(revision) as tree:
        workers = {"here": _Exports(_TREE), "there": _Exports(tree)}
        for name in names:
            for dynamic in (False, True):
                row: dict[str, Any] = {"network": name, "sizes": "dynamic" if dynamic else "static"}
                for _ in range(repeats):
                    for place, worker in workers.items():
                        result = worker.export(name, dynamic=dynamic)
                        row[place] = result["checksum"]
                        row[f"{place}_seconds"] = min(result["seconds"], row.get(f"{place}_seconds", float("inf")))
                row["same"] = row["here"] == row["there"]
                rows.append(row)
                print(name, row["sizes"], "same" if row["same"] else "DIFFERENT", flush=True)
    return rows


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", default="HEAD", help="the revision to compare with")
    parser.add_argument("--models", help="names of networks, with commas; all by default")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        _serve()
        return
    from ._zoo import ZOO

    names = arguments.models.split(",") if arguments.models else list(ZOO)
    rows = compare(arguments.revision, names, arguments.repeats)
    here, there = (sum(row[f"{place}_seconds"] for row in rows) for place in ("here", "there"))
    same = sum(row["same"] for row in rows)
    print(f"{same} of {len(rows)} files are the same; time here over there: {here / there:.3f}")
    if arguments.json:
        write_json(str(arguments.json), {"rows": rows})


if __name__ == "__main__":
    main()
