from __future__ import annotations

from typing import Any

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten
WEIGHT = T((6, 2, 3, 2))
BIAS = T((6,))


def _convolution(transposed: bool, *, groups: int = 1, bias: bool = True) -> Any:
    def function(x: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        output_padding = [1, 0] if transposed else [0, 0]
        return aten.convolution(
            x, weight, shift if bias else None, [2, 1], [1, 0], [1, 2], transposed, output_padding, groups
        )

    return function


def old(overload: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, transposed: bool) -> torch.Tensor:
    flags = [False, False, True] if overload == "deprecated" else [False, False, True, True]
    function = getattr(aten._convolution, overload)
    return function(x, weight, bias, [2, 1], [1, 0], [1, 2], transposed, [0, 0], 1, *flags)  # type: ignore[no-any-return]


TARGET = "aten.convolution.default"
CASES = (
    Case(TARGET, _convolution(False), (T(("n", 2, "h", "w")), WEIGHT, BIAS), ops=("Conv",)),
    Case(TARGET, _convolution(False, groups=2), (T(("n", 4, "h", "w")), WEIGHT, BIAS), "groups"),
    Case(TARGET, _convolution(False, bias=False), (T(("n", 2, "h", "w")), WEIGHT, BIAS), "no-bias"),
    Case(TARGET, _convolution(True), (T(("n", 6, "h", "w")), WEIGHT, T((2,))), "transposed", ops=("ConvTranspose",)),
    Case(TARGET, _convolution(True, groups=2), (T(("n", 6, "h", "w")), WEIGHT, T((4,))), "transposed-groups"),
    Case(
        TARGET,
        lambda x, weight: aten.convolution(x, weight, None, [1], [1], [1], False, [0], 1),
        (T(("n", 2, "w")), T((3, 2, 3))),
        "1d",
    ),
    Case(
        TARGET,
        lambda x, weight: aten.convolution(x, weight, None, [1], [0], [1], False, [0], 1),
        (T(("n", 2, 5, 6, "w")), T((3, 2, 2, 1, 3))),
        "3d",
    ),
    *(
        Case(
            f"aten._convolution.{name}",
            lambda x, w, b, n=name, t=transposed: old(n, x, w, b, t),
            (T(("n", 2 if not transposed else 6, "h", "w")), WEIGHT, T((2 if transposed else 6,))),
            "transposed" if transposed else "",
            ops=("ConvTranspose" if transposed else "Conv",),
        )
        for name in ("default", "deprecated")
        for transposed in (False, True)
    ),
    Case(
        "aten.conv_tbc.default", lambda x, w, b: torch.conv_tbc(x, w, b, 1), (T(("t", "n", 3)), T((3, 3, 4)), T((4,)))
    ),
    Case("aten.conv_tbc.default", torch.conv_tbc, (T(("h", 2, 3)), T((2, 3, 4)), T((4,))), "no padding"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_eager(case: Case) -> None:
    run(case)
