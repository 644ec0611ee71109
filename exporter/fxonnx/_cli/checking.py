"""``fxonnx check``: the findings as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from .._display import printable
from .._lower.guards import GUARDS_KEY
from .._model_files import load_model
from .._paths import parse_json
from .._program.proof import PROOF_KEY, Proof
from .._targets import PROFILES
from .._targets.check import TargetFinding, check
from ..errors import ArgumentError

__all__ = ["CheckResult", "run_check"]

_PLACES = 3
"""Number of places that are listed for equal findings."""


@dataclass(frozen=True)
class CheckResult:
    """Result of a check.

    Attributes:
        text: The findings, equal ones once, and a summary.
        record: The same for JSON, all findings.
    """

    text: str
    record: Mapping[str, Any]


def run_check(path: Path, target: Any) -> CheckResult:
    """Check a file."""
    model = load_model(path)
    proof = model.metadata_props.get(PROOF_KEY)
    described = [] if proof is None else str(Proof.of_metadata(proof)).splitlines()
    guards = _guards(model)
    findings = check(model, target)
    profile = PROFILES[target]
    nodes = sum(1 for graph in model.graphs() for _ in graph) + sum(len(each) for each in model.functions.values())
    record = {
        "model": str(path),
        "target": target,
        "source": profile.kernels.source,
        "opset": model.opset_imports.get(""),
        "nodes": nodes,
        "findings": [asdict(finding) for finding in findings],
        "guards": guards,
        "proof": None if proof is None else json.loads(proof),
    }
    lines = [
        *_grouped(findings),
        *described,
        *(f"checked by the model itself: it {name}" for name in guards),
        f"{path}: {_summary(findings, target)}; table: {profile.kernels.source}",
    ]
    return CheckResult("\n".join(lines), record)


def _guards(model: ir.Model) -> list[str]:
    """The guards that the model records."""
    try:
        found = parse_json(model.metadata_props.get(GUARDS_KEY, "[]"))
        return [printable(text) for text in found]
    except (ValueError, TypeError) as error:
        raise ArgumentError("model", f"its metadata {GUARDS_KEY} is not a record of fxonnx: {error!r}") from error


def _summary(findings: Sequence[TargetFinding], target: str) -> str:
    """The number of nodes with findings of each severity, in words."""
    fails = {finding.node for finding in findings if finding.severity == "fails"}
    slow = {finding.node for finding in findings} - fails
    if not findings:
        return f"{target} runs all nodes"
    parts = [f"cannot run {_nodes(len(fails))}" if fails else "", f"runs {_nodes(len(slow))} slowly" if slow else ""]
    return f"{target} {' and '.join(filter(None, parts))}"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _grouped(findings: Sequence[TargetFinding]) -> list[str]:
    groups: dict[tuple[str, str, str], list[TargetFinding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.problem, finding.remedy), []).append(finding)
    lines = []
    for (severity, problem, remedy), members in groups.items():
        operators = ", ".join(dict.fromkeys(member.op_type for member in members if member.op_type)) or "the model"
        count = f" ({_nodes(len(members))})" if len(members) > 1 else ""
        lines.append(printable(f"{severity}: {operators}{count}: {problem}"))
        places = [_place(member) for member in members if member.node]
        lines += [f"  at: {printable(place)}" for place in places[:_PLACES]]
        if len(places) > _PLACES:
            lines.append(f"  and {len(places) - _PLACES} more, which --json lists")
        lines.append(f"  do: {printable(remedy)}")
    return lines


def _place(finding: TargetFinding) -> str:
    origin = ", ".join(text for text in (finding.module, finding.location) if text)
    return f"{finding.node} ({origin})" if origin else finding.node
