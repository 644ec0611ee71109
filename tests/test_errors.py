"""Error texts: the code comes first, suggestions for misspelled names."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


@pytest.mark.parametrize(
    "error",
    [
        errors.ArgumentError("args", "expected a tuple", hint="write (x,)"),
        errors.CaptureError("torch.export failed"),
        errors.UnsupportedOperatorError([errors.UnsupportedOperator("aten.hash_tensor.default", 1, "")], 20),
        errors.TranslationError("no shape", target="aten.relu", location="model.py:3"),
        errors.VerificationError("outputs differ", rows=[("x", 1)]),
    ],
    ids=lambda error: error.code,
)
def test_errors_are_pickled(error: errors.ExportError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


PAGES = sorted((Path(__file__).parent.parent / "docs" / "errors").glob("FX*.md"))


def classes(base: type[errors.ExportError] = errors.ExportError) -> Iterator[type[errors.ExportError]]:
    yield base
    for each in base.__subclasses__():
        yield from classes(each)


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    codes = {(one.code, one.__name__) for one in classes() if "code" in vars(one)}
    titles = [re.match(r"# (FX\d{3}): (\w+)\n", page.read_text()) for page in PAGES]
    assert [title and title[1] for title in titles] == [page.stem for page in PAGES]
    assert {title.groups() for title in titles if title} == codes
    index = (PAGES[0].parent / "index.md").read_text()
    rows = re.findall(r"^\| \[(FX\d{3})\]\((FX\d{3})\.md\) \| `(\w+)`", index, flags=re.MULTILINE)
    assert {(code, name) for code, link, name in rows if code == link} == codes
    tree = re.findall(r"(\w+) +(FX\d{3})  ", errors.__doc__ or "")
    assert {(code, name) for name, code in tree} == codes


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_example_of_a_page_raises_its_error(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text()
    assert re.findall(r"^## (\w+)$", text, flags=re.MULTILINE) == ["Cause", "Example", "Remedy"]
    (source,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    # torch.export reads the source of functions.
    script = tmp_path / "example.py"
    script.write_text(source)
    (shown,) = re.findall(r"^```text\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    if page.stem in ("FX000", "FX010"):  # they change modules
        raised = subprocess.run([sys.executable, "-W", "ignore", str(script)], capture_output=True, text=True).stderr
        assert re.sub(r"torch 2\S+", "torch 2.13.0", raised).count("".join(shown.splitlines(keepends=True)[:2])) == 1
        return
    with pytest.raises(errors.ExportError) as caught:
        exec(compile(source, str(script), "exec"), {"__name__": "__main__", "__file__": str(script)})
    assert caught.value.code == page.stem
    assert shown.splitlines()[0] == str(caught.value).splitlines()[0]
