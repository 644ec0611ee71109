"""The quick suite, ``make quick``, with other versions of Python and of libraries: ``make matrix MATRIX="torch-2.15 oldest"``.

Each row has an environment of its own in ``.venv-matrix``, made by uv: the versions in ``constraints.txt`` but for those
that the row names. Results are kept in ``docs/matrix.json``, a line for each row, from which the table of
``docs/stability.md`` is generated; rows that are not run keep theirs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "matrix.json"
ENVIRONMENTS = ROOT / ".venv-matrix"
SHOWN = ("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "transformers")
"""The packages whose versions the table shows."""
UNPINNED = ("torchvision", "timm", "pytorch-lightning", "lightning-utilities", "torchmetrics")
"""Installed without their dependencies, which ask for particular builds of torch."""
QUICK = (
    "tests/ordinary",
    "tests/models/test_decoding.py",
    "tests/models/test_opsets.py",
    "tests/program/test_saving.py",
    "tests/test_cli.py",
    "tests/test_drop_in.py",
    "tests/test_public.py",
    "tests/test_symbolic.py",
    "tests/test_verify.py",
)
"""Everyday use: ordinary modules, networks that decode, all opsets, files, the command, the drop-in."""


@dataclass(frozen=True)
class Row:
    """A combination of versions.

    Attributes:
        name: Its name on the command line.
        python: The version of Python.
        versions: The packages whose version is not the one of ``constraints.txt``; "" for the newest.
        further: Tests that it runs beside the quick suite.
        tests: The quick suite, or other tests that it runs instead.
        packages: Further packages, in these versions.
        without: Packages of the tests that are not compatible with these.
    """

    name: str
    python: str = "3.11"
    versions: Mapping[str, str] = field(default_factory=dict)
    further: tuple[str, ...] = ()
    tests: tuple[str, ...] = QUICK
    packages: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()


ROWS = (
    Row("tested"),
    Row("python-3.10", "3.10"),
    Row("python-3.13", "3.13"),
    Row("torch-2.14", versions={"torch": "2.14.1", "torchvision": "0.29.2"}),
    Row("torch-2.15", versions={"torch": "2.15.0", "torchvision": "0.29.2"}),
    Row("onnxruntime-1.23", versions={"onnxruntime": "1.23.2"}),
    Row("onnxruntime-1.32", versions={"onnxruntime": "1.32.0"}),
    Row("onnx-1.19", versions={"onnx": "1.19.1"}),
    Row("transformers-4.57", versions={"transformers": "4.57.6"}),
    Row(
        "optimum-0.1",
        versions={"transformers": "4.57.6", "diffusers": "0.35.2"},
        # With the functions of torch.onnx replaced, which is how optimum gets to this package.
        tests=("tests/optimum_onnx", "tests/test_drop_in.py", "tests/test_legacy_callers.py"),
        packages={"optimum": "2.1.0", "optimum-onnx": "0.1.0", "sentence-transformers": "5.1.2"},
        without=("torchao",),
    ),
    Row("oldest", "3.10", {"onnx": "1.19.1", "onnxruntime": "1.23.2", "onnx-ir": "1.1.0", "onnxscript": "0.7.2"}),
    Row(
        *("newest", "3.13", dict.fromkeys((*SHOWN, "numpy", "torchvision", "torchao", "onnxruntime-genai"), "")),
        # New versions of transformers rename parameters and results of language models.
        ("tests/genai", "tests/models/test_encoder_decoder.py", "tests/models/test_state_space.py"),
    ),
)


def constraints(row: Row) -> str:
    """The lines of ``constraints.txt`` with the versions of a row."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    kept = [line for line in lines if re.split(r"[=<>;\s]", line, maxsplit=1)[0] not in row.versions]
    return "\n".join([*kept, *(f"{name}=={version}" for name, version in row.versions.items() if version)]) + "\n"


def install(row: Row) -> Path:
    """Make the environment of a row; returns its interpreter."""
    place = ENVIRONMENTS / row.name
    python = place / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", row.python, str(place)], check=True)
    pins = place / "constraints.txt"
    pins.write_text(constraints(row))
    pip = [*uv, "pip", "install", "--quiet", "--index-strategy", "unsafe-best-match", "--python", str(python)]
    pip += ["--constraint", str(pins)]
    # Also where another package, or fxonnx itself, asks for a newer version.
    wanted = place / "override.txt"
    wanted.write_text("".join(f"{name}=={version}\n" for name, version in row.versions.items() if version))
    pip += ["--override", str(wanted)]
    packages = [f"{name}=={version}" for name, version in row.packages.items()]
    subprocess.run([*pip, "--editable", f"{ROOT}[test]", *packages], check=True, cwd=ROOT)
    subprocess.run([*pip, "--no-deps", *UNPINNED], check=True, cwd=ROOT)
    if row.without:
        subprocess.run([*uv, "pip", "uninstall", "--quiet", "--python", str(python), *row.without], check=True)
    return python


def run(row: Row) -> dict[str, str]:
    """Run the quick suite in the environment of a row; returns its line of the table."""
    python = install(row)
    shown = "import importlib.metadata as m, json, platform; print(json.dumps([platform.python_version(), "
    shown += f"*(m.version(name).partition(chr(43))[0] for name in {SHOWN!r})]))"
    answer = subprocess.run([str(python), "-c", shown], check=True, capture_output=True, text=True).stdout
    command = [str(python), "-m", "pytest", "-n", "2", "--dist=worksteal", "-q", "-p", "no:cacheprovider"]
    command += [*row.tests, *row.further]
    with (ENVIRONMENTS / f"{row.name}.log").open("w") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=False, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    lines = (ENVIRONMENTS / f"{row.name}.log").read_text().splitlines()
    counts = re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", lines[-1] if lines else "")
    result = ", ".join(f"{count} {outcome}" for count, outcome in counts) or "not run"
    return {
        "row": row.name,
        **dict(zip(("Python", *SHOWN), json.loads(answer), strict=True)),
        "result": result,
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
    }


def main() -> None:
    """Run rows, all by default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="names of rows", metavar="ROW")
    parser.add_argument("--quick", action="store_true", help="print the tests of the quick suite only")
    options = parser.parse_args()
    if options.quick:
        print(*QUICK)
        return
    names = options.rows
    unknown = set(names) - {row.name for row in ROWS}
    if unknown:
        parser.error(f"no such rows: {', '.join(sorted(unknown))}; there are {', '.join(row.name for row in ROWS)}")
    for row in ROWS:
        if names and row.name not in names:
            continue
        found = run(row)
        print(" ".join(found.values()), flush=True)
        known = {line["row"]: line for line in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
        known[row.name] = found
        lines = [json.dumps(known[each.name]) for each in ROWS if each.name in known]
        RESULTS.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
