"""The page of optimum-onnx's exports, docs/reference/optimum-types.md, from the JSON files of ``optimum_exports``.

    make optimum-page
    python -m benchmarks.optimum_page optimum.json tokens.json

A pair that is in several files has the results of the last one. A pair that is not valid needs a reason here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ._output import geometric_mean, text

__all__ = ["PAGE", "REASONS", "page", "rows_of_page"]

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "optimum-types.md"

REASONS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        (
            "gemma3",
            "text-generation-with-past",
        ): "optimum's own: its comparison calls the model without a cache; the file generates PyTorch's tokens",
        (
            "imagegpt",
            "image-classification",
        ): "transformers' own: the model fails without a cache, which optimum turns off",
        ("vit_mae", "feature-extraction"): "the model draws a random mask in each call",
        ("metaclip_2", "image-classification"): "optimum's own: it passes `input_ids`, which the class does not have",
        (
            "metaclip_2",
            "zero-shot-image-classification",
        ): "optimum's own: the model returns the outputs of its two parts "
        "as well, which its configuration does not list",
    }
)
"""Type and task to the reason why the pair is not valid."""

_HEAD = """# Model types of optimum-onnx

`onnx_export_from_model` of optimum-onnx 0.1.0, unchanged, with `fxonnx.install()` and transformers 4.57: small models
with random weights, each type for the tasks that generate with a past, or for the first ones that have a head.
`make optimum-page` writes this page.

{valid} of {count} pairs are valid with fxonnx, and {peer} with the TorchScript exporter of torch.onnx, which optimum
uses otherwise. Valid means that optimum accepts every file: names of outputs and axes, shapes, and values in ONNX
Runtime within 1e-5 or the tolerance of the type. "Tokens" compares 12 tokens of `ORTModelForCausalLM` or
`ORTModelForSeq2SeqLM` with PyTorch's.

"Seconds" is the CPU time of the exports of a pair, with all dims dynamic that optimum requests, in a process that has
imported everything. TorchScript records one run of the small model, with the sizes that it has there as constants
where Python computes them. fxonnx takes {ratio:.1f} times as long in the geometric mean over {timed} pairs,
at most {worst:.1f} times.

| Model type | Task | fxonnx | TorchScript | Tokens | Seconds | TorchScript's | Reason |
|---|---|---|---|---|---:|---:|---|
"""


def page(rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """The page for the results by type and task.

    Raises:
        KeyError: If a pair that is not valid has no reason.
    """
    lines = []
    for (model_type, task), row in rows.items():
        ours, theirs = (row[name].partition(":")[0] for name in ("fxonnx", "TorchScript"))
        reason = "" if ours == "valid" else REASONS[model_type, task]
        seconds = " | ".join(text(row.get(f"{name} s")) for name in ("fxonnx", "TorchScript"))
        lines.append(f"| {model_type} | {task} | {ours} | {theirs} | {row.get('tokens', '')} | {seconds} | {reason} |")
    valid, peer = (sum(row[name] == "valid" for row in rows.values()) for name in ("fxonnx", "TorchScript"))
    ratios = [
        row["fxonnx s"] / row["TorchScript s"]
        for row in rows.values()
        if row.get("fxonnx s") and row.get("TorchScript s")
    ]
    times = {"ratio": geometric_mean(ratios), "timed": len(ratios), "worst": max(ratios)}
    return _HEAD.format(valid=valid, count=len(rows), peer=peer, **times) + "\n".join(lines) + "\n"


def rows_of_page() -> list[list[str]]:
    """The cells of the page's table."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:]]


def merged(contents: Sequence[Mapping[str, Sequence[Mapping[str, Any]]]]) -> dict[tuple[str, str], dict[str, Any]]:
    """The results of several files by type and task, with a key for generated tokens."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in (row for content in contents for row in content["rows"]):
        known = found.setdefault((row["type"], row["task"]), {})
        kind = row.get("fxonnx", "").partition(":")[0]
        known |= (
            {"tokens": kind}
            if kind in ("equal", "differ")
            else {name: row[name] for name in ("fxonnx", "TorchScript", "fxonnx s", "TorchScript s") if name in row}
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    PAGE.write_text(page(merged([json.loads(file.read_text()) for file in options.files])), encoding="utf-8")


if __name__ == "__main__":
    main()
