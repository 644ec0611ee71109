"""Error texts: the code comes first, suggestions for misspelled names."""

from __future__ import annotations

import pytest
from torch.onnx import OnnxExporterError

from fxonnx import errors


def test_a_text_begins_with_the_code() -> None:
    error = errors.ArgumentError("args", "expected a tuple\n  got a list", hint="write (x,)")
    assert str(error) == "error[FX001]: args: expected a tuple\n  got a list\nhint: write (x,)"
    assert (error.message, error.hint) == ("args: expected a tuple\n  got a list", "write (x,)")
    operators = [errors.UnsupportedOperator("aten.hash_tensor.default", 1, "")]
    unsupported = errors.UnsupportedOperatorError(operators, 20)
    assert str(unsupported).startswith("error[FX004]: 1 operator has no ONNX translation and no decomposition")
    with pytest.raises(
        OnnxExporterError, match=r"^error\[FX005\]: translating aten\.relu: no shape\n  at: model\.py:3$"
    ):
        raise errors.TranslationError("no shape", target="aten.relu", location="model.py:3")


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("bacth", ["batch", "sequence"], "did you mean 'batch'?"),
        ("ORT", ["ort", "openvino"], "did you mean 'ort'?"),
        ("dim1", ["dim_1", "dim_2"], "did you mean 'dim_1'?"),
        ("dim_", ["dim_1", "dim_2", "n"], "did you mean 'dim_1' or 'dim_2'?"),
        ("xyz", ["batch"], None),
        (3, ["batch"], None),
        ("error", ["errors", None, 3], "did you mean 'errors'?"),
    ],
)
def test_suggestions(name: object, known: list[object], hint: str | None) -> None:
    assert errors.did_you_mean(name, known) == hint
    rest = "there are: batch"
    assert errors.did_you_mean(name, known, rest) == (f"{hint} {rest}" if hint else rest)
