"""Records of the fusions of an export, and of the subgraphs that nearly match a fusion pattern."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .._provenance import module_path, source_line
from .._public import public
from .patterns.formula import Matches

__all__ = ["Fusion", "FusionRecord", "NearMiss", "record_fusions"]


@public
@dataclass(frozen=True)
class Fusion:
    """The matches of a fusion pattern in one module.

    Attributes:
        pattern: Name of the pattern.
        module: Path of the innermost module that contains them, ``encoder.layer.0.attention``; "" for the model.
        count: The number of matches.
    """

    pattern: str
    module: str
    count: int

    def __str__(self) -> str:
        return f"{self.pattern} in {self.module or 'the model'}: {self.count}"


@public
@dataclass(frozen=True)
class NearMiss:
    """A subgraph that nearly matches a fusion pattern.

    Attributes:
        pattern: Name of the pattern.
        module: Path of the innermost module that contains the node; "" for the model.
        line: The user's line of code, ``model.py:12``.
        node: Name of the captured node at which the pattern begins, such as the softmax of an attention.
        reason: Why the pattern does not match.
    """

    pattern: str
    module: str
    line: str
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.line} in {self.module or 'the model'}: {self.pattern}: {self.reason}"


@dataclass(frozen=True)
class FusionRecord:
    """The fusions of an export.

    Attributes:
        counts: Name of each applied pattern to the number of its matches.
        fusions: The matches by pattern, in the order of application, and by module, in the order of the graph.
        near_misses: The near misses in the same order.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    fusions: tuple[Fusion, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()

    def joined(self, others: Iterable[FusionRecord]) -> FusionRecord:
        """This record together with the subgraphs', by pattern."""
        records = [self, *others]
        if len(records) == 1:
            return self
        counts: dict[str, int] = {}
        found: Counter[tuple[str, str]] = Counter()
        for record in records:
            for name, count in record.counts.items():
                counts[name] = counts.get(name, 0) + count
            for fusion in record.fusions:
                found[fusion.pattern, fusion.module] += fusion.count
        order = {name: index for index, name in enumerate(counts)}
        fusions = [Fusion(pattern, module, count) for (pattern, module), count in found.items()]
        misses = [miss for record in records for miss in record.near_misses]
        return FusionRecord(
            counts,
            tuple(sorted(fusions, key=lambda fusion: order[fusion.pattern])),
            tuple(sorted(misses, key=lambda miss: order[miss.pattern])),
        )


def record_fusions(results: Mapping[str, Matches]) -> FusionRecord:
    """Record the results of all patterns on one graph.

    Args:
        results: Name of each applied pattern to its result.
    """
    fusions, misses = [], []
    for name, matches in results.items():
        by_module = Counter(module_path(node) for node in matches.fused)
        fusions += [Fusion(name, module, count) for module, count in by_module.items()]
        misses += [
            NearMiss(name, module_path(node), source_line(node), node.name, reason)
            for node, reason in matches.missed.items()
        ]
    counts = {name: len(matches.fused) for name, matches in results.items()}
    return FusionRecord(counts, tuple(fusions), tuple(misses))
