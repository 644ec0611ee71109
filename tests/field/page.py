"""docs/field.md, and the totals of the README, from the stored results."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from .catalog import rows
from .judge import EXPORTERS, VERDICTS, Result
from .reports import ISSUES
from .row import Row
from .stored import known, pins

__all__ = ["page", "totals", "write"]

_PATH = Path(__file__).parents[2] / "docs" / "field.md"

_INTRODUCTION = """\
# The field

Models of published libraries, which nobody here wrote, in the form that their deployers ask for: {totals}.
`make field` installs the libraries, exports each model, saves it, runs the file in ONNX Runtime and compares it with the model in eager
torch, at the example and at other sizes or values, and writes this page. `tests/field` has the models.

| verdict | models | |
|---|---|---|
{verdicts}

Times are processor seconds of the export, on one core, beside `torch.export.export` alone with the same dims, which is empty if
torch cannot capture the model. Models with a star have trained weights, from their package.
{compared}"""

_COMPARED = """
The last columns are the verdicts of `torch.onnx.export`, with `dynamo=True` and through TorchScript, stored when the row was added;
`make field REFRESH=1` runs them for rows without one. {counts}.
"""
_NAMES = {"dynamo": "torch.onnx", "torchscript": "TorchScript"}
"""Exporters of torch by the heading of their column."""

_COLUMNS = ("model", "dims", "verdict", "limits, or the reason", "seconds", "torch.export", "nodes")


_REPORTS = """
## Programs of public reports

{totals} are right. They are written anew, in `tests/field/reports.py`, and run in every change.

| program | reports | dims | verdict | limits, or the reason |
|---|---|---|---|---|
"""


def _results(*, reports: bool) -> dict[str, Result]:
    return {key: each for key, each in known("fxonnx").items() if key.startswith("reports/") == reports}


def _right(results: dict[str, Result]) -> str:
    return f"{sum(result.verdict == 'right' for result in results.values())} of {len(results)}"


def totals() -> str:
    """The sentence that the README has."""
    results = _results(reports=False)
    libraries = {key.partition("/")[0] for key in results}
    return f"{_right(results)} models of {len(libraries)} libraries are right at every size that was asked for"


def page() -> str:
    """The text of docs/field.md."""
    results, reports = _results(reports=False), _results(reports=True)
    counts = Counter(result.verdict for result in results.values())
    verdicts = "\n".join(
        f"| {name} | {counts[name]} | {text} |" for name, text in VERDICTS.items() if name != "invalid"
    )
    others = {exporter: known(exporter) for exporter in EXPORTERS[1:] if known(exporter)}
    compared = _COMPARED.format(counts=_counts(results, others)) if others else ""
    text = _INTRODUCTION.format(totals=totals(), verdicts=verdicts, compared=compared)
    library, versions = "", pins()
    for row in rows():
        if row.key in results:
            if row.library != library:
                library = row.library
                text += f"\n## {library} {versions[library]}\n\n"
                text += (
                    _cells(*_COLUMNS, *map(_NAMES.__getitem__, others)) + "|---" * (len(_COLUMNS) + len(others)) + "|\n"
                )
            verdicts_of_others = [each[row.key].verdict if row.key in each else "" for each in others.values()]
            text += _line(row, results[row.key], verdicts_of_others)
    text += _REPORTS.format(totals=_right(reports))
    for row in rows():
        if row.key in reports:
            result = reports[row.key]
            text += _cells(row.name, ISSUES[row.name], result.dims, result.verdict, _code(result.text))
    return text


def _counts(results: dict[str, Result], others: dict[str, dict[str, Result]]) -> str:
    """How many models each exporter of torch exports right, and how many of these fxonnx does not."""
    right = {name: {key for key, each in found.items() if each.verdict == "right"} for name, found in others.items()}
    texts = []
    for exporter, found in others.items():
        judged = results.keys() & found.keys()
        texts.append(f"{_NAMES[exporter]} is right for {len(right[exporter] & judged)} of {len(judged)} models")
    ours = {key for key, each in results.items() if each.verdict == "right"}
    lost = sorted(set.union(*right.values()) & results.keys() - ours)
    return f"{', '.join(texts)}; right there and not in fxonnx: {', '.join(lost) or 'none'}"


def _line(row: Row, result: Result, others: list[str]) -> str:
    numbers = ["" if value is None else str(value) for value in (result.seconds, result.capture, result.nodes)]
    name = f"{row.name} *" if row.real else row.name
    return _cells(name, result.dims, result.verdict, _code(result.text), *numbers, *others)


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"


def _code(text: str) -> str:
    return f"`{text.replace('|', '/').replace('`', '')}`" if text else ""


def write() -> None:
    """Write docs/field.md."""
    _PATH.write_text(page())
