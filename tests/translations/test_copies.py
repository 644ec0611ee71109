from __future__ import annotations

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten
EMPTY = torch.zeros(0, dtype=torch.bool)
MASK = T(("n", 3), torch.bool)

CASES = (
    Case("aten.copy.default", lambda x, y: aten.copy(x, y), (T(("n", 3)), T(("n", 3)))),
    Case("aten.copy.default", lambda x, y: aten.copy(x, y), (T(("n", 3), torch.int32), T((3,))), "cast-and-broadcast"),
    Case("aten.copy.default", lambda x, y: aten.copy(x, y), (torch.zeros(0, 3), T(())), "empty"),
    *(
        Case(f"aten._is_{name}_true.default", function, (mask,), kind)
        for name, function in (("all", aten._is_all_true), ("any", aten._is_any_true))
        for kind, mask in (
            ("some", MASK),
            ("all", torch.ones(3, dtype=torch.bool)),
            ("none", torch.zeros(3, dtype=torch.bool)),
            ("empty", EMPTY),
            ("0-dim", torch.tensor(True)),
        )
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_eager(case: Case) -> None:
    run(case)
