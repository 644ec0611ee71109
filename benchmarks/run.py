"""All measurements, one after the other, and the page and the plots of their results.

    python -m benchmarks.run --all
    python -m benchmarks.run --only export,graphs
    python -m benchmarks.run --only page

Each part is a benchmark of its own, run in a process of its own, whose JSON goes to ``benchmarks/results``; the page
``benchmarks/RESULTS.md`` and a plot for each table are made of all that is there. On two cores all of it takes about
an hour and a half, most of it in torch.onnx. Needs the extra ``bench``, and a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2

from ._output import environment, text

HERE = Path(__file__).parent
RESULTS = HERE / "results"


@dataclass(frozen=True)
class Part:
    """One table of the page.

    Attributes:
        title: Its heading.
        caption: Text above the table.
        command: Module and arguments.
        columns: The columns of the table, of all those in the JSON; those that are not there are left out.
        plotted: The columns of the plot.
        logarithmic: Whether the plot shows growth, along the first column.
    """

    title: str
    caption: str
    command: Sequence[str]
    columns: Sequence[str]
    plotted: Sequence[str]
    logarithmic: bool = False


_SPEED = ("model", "torch.export", "fxonnx", "torch.onnx", "TorchScript", "fxonnx/capture", "torch.onnx/capture")
_GRAPHS = ("model", "ms", "run 20", "run 23", "default/best", "best/best", "load", "load best", "size")

PARTS: Mapping[str, Part] = MappingProxyType(
    {
        "export": Part(
            "Time of an export, static",
            "CPU seconds, the least of two repeats; `fxonnx/capture` is the whole export over torch.export alone.",
            ("export_speed", "--repeats", "2"),
            (*_SPEED, "torch.onnx/fxonnx"),
            ("fxonnx/capture", "torch.onnx/capture"),
        ),
        "export-dynamic": Part(
            "Time of an export, dynamic",
            "The same with the sizes open that the model leaves open: batch, sequence, height, width, past.",
            ("export_speed", "--repeats", "2", "--dynamic"),
            (*_SPEED, "torch.onnx/fxonnx"),
            ("fxonnx/capture", "torch.onnx/capture"),
        ),
        "graphs": Part(
            "Graphs in ONNX Runtime",
            "On one thread. `ms` is our graph at the default opset, 20; `run N` our latency over torch.onnx's at opset "
            "N; `default/best` that at our default opset over torch.onnx's at the faster one, `best/best` each at its "
            "faster one, `load` and `size` the time to make a session and the bytes of the file.",
            ("graphs",),
            (*_GRAPHS, "/TorchScript", "/eager"),
            ("default/best", "best/best", "load"),
        ),
        "nodes": Part(
            "Nodes",
            "Of the same graphs, ours and ours over torch.onnx's.",
            (),
            ("model", "nodes 20", "nodes/theirs 20", "nodes 23", "nodes/theirs 23"),
            ("nodes/theirs 20", "nodes/theirs 23"),
        ),
        "steps": Part(
            "Transformers at the lengths of use",
            "One token after 31 others, 32 and 128 tokens; the default graphs.",
            ("graphs", "--set", "steps"),
            _GRAPHS,
            ("default/best", "best/best"),
        ),
        "target": Part(
            'Transformers with `target="onnxruntime"`',
            "The same with the graph for ONNX Runtime; torch.onnx at its faster opset.",
            ("graphs", "--set", "steps", "--target", "onnxruntime"),
            ("model", "nodes 23", "nodes/theirs 23", "run 23", "best/best", "load best"),
            ("best/best",),
        ),
        "graph_optimizers": Part(
            "Graphs beside ONNX Runtime's optimizer for transformers",
            "torch.onnx's files after the optimizer with the settings of optimum's levels O2 and O3; our default graph "
            'and the one with `target="onnxruntime"` over the faster of the two.',
            ("graph_optimizers",),
            (
                *("model", "ms", "torch.onnx ms", "optimum O2 ms", "optimum O3 ms"),
                *("default/optimizer", "onnxruntime/optimizer"),
            ),
            ("default/optimizer", "onnxruntime/optimizer"),
        ),
        "language_models": Part(
            "Language models with `fxonnx.genai.export`",
            "Models of 8 layers with hidden size 768 in float32 and int4: one token after 32 and 1024 others, and a "
            "prompt of 128; over the graphs of onnxruntime-genai's model builder. torch.onnx at opset 23, quantized by "
            "ONNX Runtime.",
            ("language_models",),
            ("model", "fxonnx ms", "builder ms", "torch.onnx ms", "tokens/s", "fxonnx/builder", "torch.onnx/builder"),
            ("fxonnx/builder", "torch.onnx/builder"),
        ),
        "language_model_recipes": Part(
            "Recipes of `fxonnx genai`",
            "Forms of the weights of SmolLM2-135M-Instruct, over the int4 graph of onnxruntime-genai's model builder, "
            "on one thread. Against float32, for texts that Python ships: the increase of the perplexity, the KL "
            "divergence of the probabilities in nats, and the share of equal most probable tokens. OpenVINO's files "
            "are optimum-intel's, in OpenVINO's runtime with its defaults.",
            ("language_model_recipes",),
            (
                *("model", "MB", "decode at 32, ms", "decode at 32, /builder"),
                *("decode at 512, ms", "decode at 512, /builder", "prefill 512, ms", "prefill 512, /builder"),
                *("perplexity, %", "KL, nats", "top-1, %"),
            ),
            ("decode at 32, /builder", "decode at 512, /builder", "prefill 512, /builder"),
        ),
        "huggingface_exports": Part(
            "Checkpoints of transformers",
            "`fxonnx hf` with and without its comparison, the OnnxExporter of transformers 5 and optimum-onnx (with "
            "transformers 4.57, by TorchScript), in seconds after the imports, CPU seconds and MiB at the peak. The "
            "ratios are of CPU seconds: OnnxExporter over fxonnx without it, optimum-onnx over fxonnx with it.",
            ("huggingface_exports",),
            (
                *("model", "fxonnx CPU s", "fxonnx MiB", "fxonnx, unverified CPU s", "fxonnx, unverified MiB"),
                *("OnnxExporter CPU s", "OnnxExporter MiB", "optimum-onnx CPU s", "optimum-onnx MiB"),
                *("OnnxExporter/fxonnx", "optimum-onnx/fxonnx"),
            ),
            ("OnnxExporter/fxonnx", "optimum-onnx/fxonnx"),
        ),
        "huggingface_generation": Part(
            "Generation by `generate` of transformers",
            "A Llama of 6 layers with hidden size 512: tokens per second of 64 after a prompt, on one thread. `load` "
            "is `fxonnx.huggingface.load`, genai has its own loop, OnnxExporter's parts run in its runner.",
            ("huggingface_generation",),
            ("model", "tokens/s after 32", "tokens/s after 512", "/eager 32", "/eager 512"),
            ("/eager 32", "/eager 512"),
        ),
        "growth": Part(
            "Growth with the model",
            "A Llama with this many layers: CPU seconds of torch.export alone, of the whole export, and of it for each "
            "layer. The last row has the exponents of the number of layers.",
            ("growth",),
            (
                *("layers", "fxonnx capture", "fxonnx total", "fxonnx a layer", "fxonnx/capture", "fxonnx MiB"),
                *("torch.onnx total", "torch.onnx a layer", "torch.onnx/capture", "torch.onnx MiB"),
            ),
            ("fxonnx capture", "fxonnx total", "torch.onnx total"),
            logarithmic=True,
        ),
        "meta_models": Part(
            "Models without weights",
            "Language models in their published sizes on the meta device, batch and length dynamic: billions of "
            "parameters, CPU seconds of the export and of saving without weights, the peak memory of the process and "
            "its memory before the export, and the size of the graph's file.",
            ("meta_models",),
            (
                *("model", "parameters", "layers", "export", "a layer", "save", "peak MiB", "before MiB"),
                *("nodes", "graph MiB"),
            ),
            ("a layer",),
        ),
        "memory": Part(
            "Peak memory of an export with saving",
            "Above the loaded model; `files` is the bytes written, ours over torch.onnx's.",
            ("export_memory",),
            ("model", "weights MiB", "fxonnx MiB", "torch.onnx MiB", "files"),
            ("fxonnx MiB", "torch.onnx MiB"),
        ),
        "operators": Part(
            "Nodes of operators",
            "Samples of torch's operator database in float32 that both export right at opset 20: the entries with more "
            "than 1.5 times as many nodes as torch.onnx writes, each with its reason, and the sum over all entries.",
            ("operator_nodes",),
            ("operator", "samples", "nodes", "theirs", "nodes/theirs", "reason"),
            ("nodes/theirs",),
        ),
    }
)

_PAGE = """\
# Results

Made by `python -m benchmarks.run --all` on {{ environment.machine }}, {{ cores }} cores, no GPU:
{% for name, version in environment.items() if name != "machine" -%}
{{ name }} {{ version }}{{ ", " if not loop.last else "." }}
{%- endfor %}
All of one model is measured in one run, alternating; seconds depend on the machine, ratios hardly. Below 1 is better
for ours wherever a column is a ratio of ours to theirs. Weights are random.
{% for section in sections %}
{{ section }}
{% endfor -%}
"""

_SECTION = """\
## {{ part.title }}

{{ part.caption }}

| {{ table.header | join(" | ") }} |
|---|{{ "---:|" * (table.header | length - 1) }}
{% for row in table.rows -%}
| {{ row | join(" | ") }} |
{% endfor %}
![{{ part.title }}](results/{{ name }}.svg)"""


def measure(name: str) -> None:
    """Runs a part; its numbers go to a file."""
    module, *arguments = PARTS[name].command
    RESULTS.mkdir(exist_ok=True)
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments, "--json", str(_json(name))]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _json(name: str) -> Path:
    # The nodes are counted with the rest of the graphs.
    return RESULTS / f"{'graphs' if name == 'nodes' else name}.json"


def write_page() -> None:
    """Writes the page and the plots of all parts that have been measured; other sections of the page are kept."""
    path = HERE / "RESULTS.md"
    old = re.split(r"\n(?=## )", path.read_text().rstrip("\n")) if path.exists() else []
    kept = {section.partition("\n")[0].removeprefix("## "): section.rstrip("\n") for section in old[1:]}
    sections = []
    for name, part in PARTS.items():
        if _json(name).exists():
            sections.append(_section(name, json.loads(_json(name).read_text())["rows"]))
        elif part.title in kept:
            sections.append(kept[part.title])
    page = jinja2.Template(_PAGE, keep_trailing_newline=True).render(
        sections=sections, environment=environment(), cores=os.cpu_count()
    )
    path.write_text(page)


def _section(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The section of a part, whose plot is written."""
    part = PARTS[name]
    columns = [column for column in part.columns if any(column in row for row in rows)]
    cells = [[text(row.get(column)) for column in columns] for row in rows]
    _plot(name, rows)
    return jinja2.Template(_SECTION).render(name=name, part=part, table={"header": columns, "rows": cells})


def _plot(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": name, "svg.fonttype": "none"}
    from matplotlib import pyplot

    part = PARTS[name]
    first = part.columns[0]
    if part.logarithmic:
        figure, axes = pyplot.subplots(figsize=(6, 4))
        numbers = [row for row in rows if not isinstance(row[first], str)]
        for column in part.plotted:
            if all(column in row for row in numbers):
                axes.loglog([row[first] for row in numbers], [row[column] for row in numbers], "o-", label=column)
        axes.set_xlabel(first)
        axes.set_ylabel("CPU seconds")
    else:
        figure, axes = pyplot.subplots(figsize=(8, 1 + 0.16 * len(rows) * len(part.plotted)))
        height = 0.8 / len(part.plotted)
        for index, column in enumerate(part.plotted):
            places = [place + index * height for place, row in enumerate(rows) if row.get(column) is not None]
            axes.barh(places, [row[column] for row in rows if row.get(column) is not None], height, label=column)
        axes.set_yticks([place + 0.4 - height / 2 for place in range(len(rows))], [str(row[first]) for row in rows])
        axes.invert_yaxis()
        if any("/" in column for column in part.plotted):
            axes.axvline(1, color="black", linewidth=0.8)
    axes.set_title(part.title.replace("`", ""))
    axes.legend()
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the selected parts and write the page."""
    measured = [name for name, part in PARTS.items() if part.command]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="", help=f"some of {', '.join(measured)}; page for no measurement")
    options = parser.parse_args(arguments)
    wanted = measured if options.all else [name for name in options.only.split(",") if name and name != "page"]
    if unknown := [name for name in wanted if name not in measured]:
        parser.error(f"--only: unknown part {unknown[0]}; there are {', '.join(measured)}, page")
    if not options.all and not options.only:
        parser.error("pass --all or --only")
    for name in wanted:
        print(f"== {name}", file=sys.stderr)
        measure(name)
    write_page()


if __name__ == "__main__":
    main()
