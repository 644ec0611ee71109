"""A page in Markdown about one export, whether it succeeded or not."""

from __future__ import annotations

import collections
import os
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import onnx_ir as ir

from ..errors import ExportError, SaveError
from .artifacts import artifact

if TYPE_CHECKING:
    from .._program import ONNXProgram

__all__ = ["write_report"]

_PAGE = """\
# fxonnx export report

{{ "The export succeeded." if error is none else "The export failed." }}
{% if error is not none %}
## Error

{{ error.code }} {{ kind }}

```
{{ error }}
```

```pytb
{{ trace }}
```
{% endif %}
## Stages

| stage | seconds |
|---|---|
{% for stage, seconds in timings.items() -%}
| {{ stage }} | {{ "%.3f" | format(seconds) }} |
{% endfor %}
{%- if program is not none %}
## Model

opset {{ model.opset_imports[""] }}, IR version {{ model.ir_version }}, {{ model.graph | length }} nodes, \
{{ model.graph.initializers | length }} initializers

| | name | type |
|---|---|---|
{% for value in model.graph.inputs -%}
| input | {{ value.name }} | {{ kinds(value) }} |
{% endfor -%}
{% for value in model.graph.outputs -%}
| output | {{ value.name }} | {{ kinds(value) }} |
{% endfor %}
| operator | nodes |
|---|---|
{% for operator, count in operators -%}
| {{ operator }} | {{ count }} |
{% endfor %}
| pattern that was recognized | times |
|---|---|
{% for pattern, count in program.patterns.items() -%}
| {{ pattern }} | {{ count }} |
{% endfor %}
## Sizes the model is right for
{% for constraint in program.constraints %}
- {{ constraint }}
{%- else %}
All that were asked for.
{%- endfor %}

## Arguments that are part of the model
{% for name, value in program.frozen_arguments.items() %}
- {{ name }} = {{ value }}
{%- else %}
None.
{%- endfor %}

## Exported program

```python
{{ program.exported_program }}
```
{% endif %}"""


def write_report(
    directory: str | os.PathLike[str],
    timings: Mapping[str, float],
    program: ONNXProgram | None = None,
    error: ExportError | None = None,
) -> Path:
    """Writes the page.

    Args:
        directory: Where to; it is made if it is not there.
        timings: Stage name to seconds.
        program: What was exported, if it was.
        error: What it failed with, otherwise.

    Returns:
        Its path, ``onnx_export_<time>_success.md`` or ``..._error.md``.

    Raises:
        SaveError: If it can not be written.
    """
    model = None if program is None else program.model
    counts = collections.Counter(node.op_type for node in model.graph.all_nodes()) if model is not None else {}
    page = (
        jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
        .from_string(_PAGE)
        .render(
            error=error,
            kind=type(error).__name__,
            trace="" if error is None else "".join(traceback.format_exception(error)).strip(),
            timings=timings,
            program=program,
            model=model,
            operators=sorted(counts.items(), key=lambda item: (-item[1], item[0])),
            kinds=_kind,
        )
    )
    path = artifact(directory, f"_{'success' if error is None else 'error'}.md")
    try:
        path.write_text(page.strip() + "\n", encoding="utf-8")
    except OSError as failure:
        raise SaveError(f"the report can not be written to {path}: {failure.strerror}") from failure
    return path


def _kind(value: ir.Value) -> str:
    dtype = value.dtype.name if value.dtype is not None else "?"
    return f"{dtype}[{', '.join(map(str, value.shape or ()))}]"
