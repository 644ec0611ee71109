"""What the leaves of the inputs are called outside of Python."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .shapes import Leaf

__all__ = ["dotted_name", "graph_names"]

# What pytree.keystr writes: a repr of the key in brackets, or an attribute.
_STEP = re.compile(r"""\[('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\]]*)\]|\.(\w+)""")


def graph_names(leaves: Sequence[Leaf]) -> list[str]:
    """The names torch.export gives to the graph inputs: ``x_a_0`` for ``x['a'][0]``, ``x_a_0_1`` if that is taken."""
    names: list[str] = []
    for leaf in leaves:
        wanted = dotted_name(leaf, "_", other="_").lower()
        name, number = wanted, 0
        while name in names:
            number += 1
            name = f"{wanted}_{number}"
        names.append(name)
    return names


def dotted_name(leaf: Leaf, separator: str = ".", other: str | None = None) -> str:
    """Parameter and path of a leaf as one word: ``x.a.0`` for ``x['a'][0]``.

    Args:
        leaf: The leaf.
        separator: What stands between two steps of the path.
        other: What stands for characters that are neither letters nor digits; they stay if it is None.
    """
    steps = [leaf.parameter]
    for key, field in _STEP.findall(leaf.path):
        steps.append(key[1:-1] if key[:1] in ("'", '"') else key or field)
    if other is not None:
        steps = [re.sub(r"[^a-zA-Z0-9]", other, step) for step in steps]
    return separator.join(steps)
