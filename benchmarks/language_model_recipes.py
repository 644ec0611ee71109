"""Forms of the weights of a language model: speed on one thread and quality, over float32 and the model builder.

    python -m benchmarks.language_model_recipes [--rows "int4, 32;fast"] [--json recipes.json]

Speed is measured as in ``language_models``, with its Llama of 8 layers and hidden size 768 with random weights. Quality
needs a trained model: a Llama of 4 layers and hidden size 256 on bytes, 3.3M weights, which this benchmark trains for
some minutes on nine tenths of the documentation topics that Python ships (``pydoc_data``). On the rest it compares
probabilities with float32's: by how much the perplexity is larger, and the mean KL divergence in thousandths of a nat.
``greedy`` is the share of tokens that float32 generates, 256 after each of 8 prompts, which the row has as the most
probable ones after the same tokens.

Rows of OpenVINO are there once ``make .venv-openvino/.installed`` has made the environment of optimum-intel, which
converts the models; they run in OpenVINO's own runtime with its defaults, such as keys and values in 8 bits.
"""

from __future__ import annotations

import argparse
import logging
import math
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fxonnx import QuantizeConfig
from tests.models.torchvision_shim import import_torchvision

from ._exporters import silenced
from ._openvino_models import FILE, OpenVinoSession, export_openvino, has_optimum_intel
from ._output import print_table, text, write_json
from .language_models import STEPS as SHORT_STEPS
from .language_models import build, export_builder, export_ours, ratio, seconds_of

Export = Callable[[Any, Path], None]

BUILDER, FLOAT, OPENVINO = "builder int4", "exact", "OpenVINO int4, 128"


def _int4(size: int, rounding: Any) -> Export:
    return partial(export_ours, quantize=QuantizeConfig("int4", block_size=size, rounding=rounding))


def _mixed(model: Any, path: Path) -> None:
    export_builder(model, path, "int4", "algo_config=k_quant_mixed")


def _openvino(*options: str) -> Export:
    return lambda model, path: export_openvino(model, path, *options)


ROWS: Mapping[str, Export] = MappingProxyType(
    {
        BUILDER: lambda model, path: export_builder(model, path, "int4"),
        "builder k_quant_mixed": _mixed,
        "int4, 32": _int4(32, "nearest"),
        "int4, 32, searched": _int4(32, "search"),
        "int4, 128": _int4(128, "nearest"),
        "int4, 128, searched": _int4(128, "search"),
        "int8": partial(export_ours, precision="int8"),
        **{recipe: partial(export_ours, recipe=recipe) for recipe in (FLOAT, "balanced", "fast", "prefill")},
        "OpenVINO int4, 32": _openvino("--bits", "4", "--group-size", "32"),
        OPENVINO: _openvino("--bits", "4", "--group-size", "128"),
        "OpenVINO int8": _openvino("--bits", "8"),
    }
)
"""Name to the function that exports the model."""
STEPS: Mapping[str, tuple[int, int, int]] = MappingProxyType({**SHORT_STEPS, "prefill 512": (512, 0, 10)})
_OFFSET = 3
"""Token of byte 0: the tokens before it are the padding, beginning and end."""
_LENGTH, _TEXTS, _PROMPTS, _PROMPT = 256, 64, 8, 64
_CACHE = (2, 0, 64)
"""Heads, length and head size of an empty cache."""
_STEPS, _BATCH, _WINDOW, _RATE = 700, 4, 128, 3e-3


def corpus() -> tuple[Tensor, Tensor]:
    """The tokens to train on and those to compare probabilities on."""
    content = "\n".join(topics[name] for name in sorted(topics)).encode()
    tokens = torch.tensor([*content]) + _OFFSET
    return tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :]


def trained(tokens: Tensor) -> Any:
    """Train the small model; the result is the same for the same version of torch and of Python."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "head_dim": 64}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": 300}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2 * _LENGTH}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **ids, **heads))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, _STEPS, pct_start=0.1)
    for _ in range(_STEPS):
        starts = torch.randint(len(tokens) - _WINDOW, (_BATCH,))
        batch = torch.stack([tokens[start : start + _WINDOW] for start in starts])
        model(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval()


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


def quality(path: Path, texts: Tensor, generated: Tensor, theirs: Tensor) -> dict[str, float]:
    """Compare a file with float32.

    Args:
        path: The file.
        texts: Rows of text.
        generated: Prompts with the tokens that the float32 model generates.
        theirs: The log probabilities of float32 for the texts.
    """
    own = log_probabilities(path, texts)
    next_token = texts[:, 1:, None]
    losses = [-each[:, :-1].gather(2, next_token).mean() for each in (own, theirs)]
    predicted = log_probabilities(path, generated).argmax(-1)[:, _PROMPT - 1 : -1]
    return {
        "perplexity, %": 100 * math.expm1(losses[0] - losses[1]),
        "KL, 1e-3": 1000 * float((theirs.exp() * (theirs - own)).sum(-1).mean()),
        "greedy, %": 100 * float((predicted == generated[:, _PROMPT:]).double().mean()),
    }


def export_all(names: Sequence[str], model: Any, folder: Path) -> dict[str, Path]:
    """Export a model in several forms; returns the file of each."""
    paths = {name: folder / str(index) / "model.onnx" for index, name in enumerate(names)}
    for name, path in paths.items():
        path.parent.mkdir(parents=True)
        with silenced():
            ROWS[name](model, path)
    others = {name: path.with_name(FILE) for name, path in paths.items()}
    return {name: others[name] if others[name].exists() else path for name, path in paths.items()}


def measure_speed(names: Sequence[str], rows: Mapping[str, dict[str, Any]]) -> None:
    """Add milliseconds of each step, ratios to the builder's int4, and the size of the file, to the rows."""
    with tempfile.TemporaryDirectory() as folder:
        paths = export_all(names, build("llama"), Path(folder))
        for name, path in paths.items():
            rows[name]["MB"] = sum(file.stat().st_size for file in path.parent.glob(f"{path.stem}.*")) / 1e6
        for step, (new, past, runs) in STEPS.items():
            seconds, _ = seconds_of(paths, new, past, runs)
            for name, found in seconds.items():
                rows[name][f"{step}, ms"] = min(found) * 1000
                rows[name][f"{step}, /builder"] = ratio(found, seconds[BUILDER])
                if OPENVINO in seconds:
                    rows[name][f"{step}, /OpenVINO"] = ratio(found, seconds[OPENVINO])


def measure_quality(names: Sequence[str], rows: Mapping[str, dict[str, Any]]) -> None:
    """Train the small model, and add the columns of ``quality`` to the rows."""
    train, held = corpus()
    model = trained(train)
    texts = held[: len(held) // _LENGTH * _LENGTH].reshape(-1, _LENGTH)
    prompts = texts[:: len(texts) // _PROMPTS, :_PROMPT][:_PROMPTS]
    search = {"max_new_tokens": _LENGTH, "min_new_tokens": _LENGTH, "do_sample": False}
    generated = model.generate(prompts, attention_mask=torch.ones_like(prompts), **search)
    with tempfile.TemporaryDirectory() as folder:
        paths = export_all(names, model, Path(folder))
        theirs = log_probabilities(paths[FLOAT], texts[:_TEXTS])
        for name, path in paths.items():
            rows[name] |= quality(path, texts[:_TEXTS], generated, theirs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, export, measure, print the table and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [name for name in ROWS if has_optimum_intel() or not name.startswith("OpenVINO")]
    parser.add_argument("--rows", default=";".join(every), help="names separated by semicolons; all by default")
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    import_torchvision()
    torch.set_num_threads(1)
    names = [*dict.fromkeys((BUILDER, FLOAT, *options.rows.split(";")))]
    rows: dict[str, dict[str, Any]] = {name: {"model": name} for name in names}
    measure_quality(names, rows)
    measure_speed(names, rows)
    header = list(rows[BUILDER])
    print_table("Forms of weights", header, [[text(row.get(key)) for key in header] for row in rows.values()])
    write_json(options.json, {"rows": list(rows.values())})


if __name__ == "__main__":
    main()
