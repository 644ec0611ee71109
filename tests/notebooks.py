"""Run the notebooks of the gallery; ``python -m tests.notebooks`` stores their outputs."""

from __future__ import annotations

import ast
import io
import json
import os
import sys
import tempfile
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

__all__ = ["NOTEBOOKS", "load", "make_torchvision_run", "run"]

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs" / "gallery").glob("*.ipynb"))


def load(path: Path) -> dict[str, Any]:
    """Read a notebook."""
    notebook: dict[str, Any] = json.loads(path.read_text())
    return notebook


def make_torchvision_run() -> None:
    """Give torchvision's operators kernels, if its C++ library is for another build of torch."""
    from .models.torchvision_shim import import_torchvision

    import_torchvision()
    from torchvision import extension

    from .translations.torchvision_kernels import make_operators_run

    if make_operators_run():
        extension._has_ops = lambda: True


def run(notebook: dict[str, Any], directory: Path) -> list[list[dict[str, Any]]]:
    """Run the code cells of a notebook in one namespace.

    Args:
        notebook: The notebook.
        directory: An empty directory, which must be the current one; the cells are files in it, so that they have a
            source as in Jupyter.

    Returns:
        The outputs of each code cell: printed text, and the repr of a last expression.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    found = []
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, source in enumerate(sources):
        path = directory / f"cell_{number}.py"
        path.write_text(source)
        tree = ast.parse(source)
        last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(tree, str(path), "exec"), namespace)
            value = None if last is None else eval(compile(last, str(path), "eval"), namespace)
        found.append(_outputs(printed.getvalue(), value))
    return found


def _outputs(printed: str, value: Any) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = []
    if printed:
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append({"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return outputs


def main() -> None:
    """Run the notebooks, or those named by the arguments, and store their outputs."""
    warnings.simplefilter("ignore")
    make_torchvision_run()
    for path in NOTEBOOKS:
        if len(sys.argv) == 1 or path.stem in sys.argv:
            notebook = load(path)
            with tempfile.TemporaryDirectory() as directory:
                os.chdir(directory)
                outputs = iter(run(notebook, Path(directory)))
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    cell["outputs"] = next(outputs)
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
            sys.stdout.write(f"{path.name}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
