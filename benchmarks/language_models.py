"""Language models in ONNX Runtime on one thread: fxonnx, onnxruntime-genai's model builder and torch.onnx.

    python -m benchmarks.language_models [--models llama,qwen3] [--precisions fp32,int4] [--json language_models.json]

Random weights, 8 layers, hidden size 768. Ours is the graph of ``fxonnx.genai.export``; it and the builder's have past
and present in one buffer, torch.onnx's (opset 23) has a past that grows. int4 of torch.onnx is that of
ONNX Runtime's quantizer with the same settings. The sessions of one row run alternately in one process, and are made
again in another order several times: where a session's memory lies changes its time by up to 5 %. A time is the least
CPU time of all runs, and a ratio the median of the ratios of all runs. The ratio of a second session of the builder's
graph shows the noise. The logits of the float32 graphs are compared.
"""

from __future__ import annotations

import argparse
import logging
import re
import runpy
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from fxonnx import genai
from tests.models.torchvision_shim import import_torchvision

from ._exporters import silenced
from ._openvino_models import OpenVinoRunner
from ._output import print_table, text, with_means, write_json

BUFFER = 2048
SIZES: Mapping[str, Any] = MappingProxyType(
    {
        **{"vocab_size": 8192, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8, "head_dim": 64},
        **{"num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": BUFFER},
        **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False},
    }
)
STEPS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {"decode at 32": (1, 32, 150), "decode at 1024": (1, 1024, 100), "prefill 128": (128, 0, 16)}
)
"""Name to new tokens, past and runs."""
_SESSIONS = 10
"""Number of times that the sessions are made."""
_AGAIN = "builder again"
_TOLERANCE = 1e-3


class Step(torch.nn.Module):
    """A step of a language model with its cache as tuples."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, past_key_values: Any) -> Any:
        from transformers import DynamicCache

        cache = DynamicCache(past_key_values)
        found = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        return found.logits, tuple((layer.keys, layer.values) for layer in found.past_key_values.layers)


def build(name: str) -> Any:
    """A causal language model with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **SIZES)).eval()


def export_ours(model: Any, path: Path, precision: Any = "fp32", **options: Any) -> None:
    """Export with fxonnx, with the logits of all tokens as the builder does."""
    from tests.genai.small_models import make_tokenizer

    options = {"tokenizer": make_tokenizer(), "last_logits": False, "verify": False, **options}
    genai.export(model, path.parent, precision=precision, **options)


def export_builder(model: Any, path: Path, precision: str, *options: str, tokenizer: Any = None) -> None:
    """Build with onnxruntime-genai's model builder, with options for ``--extra_options``."""
    from tests.genai.small_models import make_tokenizer

    source = path.parent / "transformers"
    model.save_pretrained(source)
    (tokenizer or make_tokenizer()).save_pretrained(source)
    arguments = ["-i", source, "-o", path.parent, "-p", precision, "-e", "cpu", "-c", path.parent / "cache"]
    arguments += ["--extra_options", *options] if options else []
    # In this process, where import_torchvision() has repaired an incomplete torchvision.
    with patch.object(sys, "argv", ["builder", *map(str, arguments)]):
        runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")


def export_torch(model: Any, path: Path, precision: str) -> None:
    """Export with torch.onnx, and quantize with ONNX Runtime."""
    past = tuple((torch.randn(2, 4, 5, 64), torch.randn(2, 4, 5, 64)) for _ in range(model.config.num_hidden_layers))
    dynamic = torch.export.Dim.DYNAMIC
    program = torch.onnx.export(
        Step(model),
        (torch.randint(8192, (2, 3)), torch.ones(2, 8, dtype=torch.int64), past),
        dynamo=True,
        verbose=False,
        opset_version=23,
        dynamic_shapes=(
            {0: dynamic, 1: dynamic},
            {0: dynamic, 1: dynamic},
            tuple(({0: dynamic, 2: dynamic}, {0: dynamic, 2: dynamic}) for _ in past),
        ),
    )
    program.save(path, external_data=True)
    if precision == "int4":
        import onnx
        from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

        settings = DefaultWeightOnlyQuantConfig(32, True, accuracy_level=4)
        quantizer = MatMulNBitsQuantizer(onnx.load(path), algo_config=settings)
        quantizer.process()
        quantizer.model.save_model_to_file(str(path), False)


EXPORTERS = MappingProxyType({"fxonnx": export_ours, "builder": export_builder, "torch.onnx": export_torch})


class Runner:
    """A session with bound inputs and outputs.

    Args:
        path: The model.
        shared: Whether past and present are one buffer.
        new: Number of new tokens.
        past: Number of tokens before them.
        heads: Number of heads of the keys.
    """

    def __init__(self, path: Path, *, shared: bool, new: int, past: int, heads: int = 4) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        random = np.random.default_rng(0)
        tokens, mask = random.integers(3, 8000, (1, new)), np.ones((1, past + new), np.int64)
        names = [value.name for value in self._session.get_inputs()]
        outputs = [value.name for value in self._session.get_outputs()]
        for name, value in zip(names, (tokens, mask), strict=False):
            self._bind(name, value)
        for position, (name, output) in enumerate(zip(names[2:], outputs[1:], strict=True)):
            # The builder lists inputs and outputs in another order; torch.onnx names them otherwise.
            place = re.search(r"(\d+)\.(key|value)$", name)
            number = position if place is None else 2 * int(place[1]) + (place[2] == "value")
            present = output if place is None else f"present.{place[0]}"
            random = np.random.default_rng(number)
            cached = np.zeros((1, heads, BUFFER if shared else past, 64), np.float32)
            cached[:, :, :past] = random.standard_normal((1, heads, past, 64)) * 0.1
            buffer = self._bind(name, cached)
            if shared:
                self._binding.bind_ortvalue_output(present, buffer)
            else:
                self._binding.bind_output(present)
        self._binding.bind_output(outputs[0])

    def _bind(self, name: str, value: np.ndarray) -> Any:
        from onnxruntime import OrtValue

        buffer = OrtValue.ortvalue_from_numpy(value)
        self._binding.bind_ortvalue_input(name, buffer)
        return buffer

    def seconds(self) -> float:
        """CPU seconds of one run."""
        start = time.process_time()
        self._session.run_with_iobinding(self._binding)
        return time.process_time() - start

    def logits(self) -> np.ndarray:
        """The first output of the last run."""
        return self._binding.get_outputs()[-1].numpy()  # type: ignore[no-any-return]


def _runner(name: str, path: Path, new: int, past: int, heads: int) -> Runner | OpenVinoRunner:
    if path.suffix == ".xml":
        return OpenVinoRunner(path, new=new, past=past)
    return Runner(path, shared=name != "torch.onnx", new=new, past=past, heads=heads)


def seconds_of(
    graphs: Mapping[str, Path], new: int, past: int, runs: int, heads: int = 4, sessions: int = _SESSIONS
) -> tuple[dict[str, list[float]], Any]:
    """Run one step of all graphs alternately, in sessions that are made several times.

    Returns:
        CPU seconds of all runs of each graph, in the order of time, and the last sessions.
    """
    seconds: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(sessions):
        names = [*graphs][turn % len(graphs) :] + [*graphs][: turn % len(graphs)]
        runners = {name: _runner(name, graphs[name], new, past, heads) for name in names}
        for runner in runners.values():
            runner.seconds()  # allocates
        for index in range(-(-runs // sessions)):
            for name in names[:: 1 if index % 2 else -1]:
                seconds[name].append(runners[name].seconds())
    return seconds, runners


def ratio(own: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of runs that followed each other."""
    return statistics.median(one / other for one, other in zip(own, theirs, strict=True))


def measure(paths: Mapping[str, Path], new: int, past: int, runs: int) -> dict[str, Any]:
    """Measure one step of all graphs.

    Returns:
        Milliseconds of each, the tokens per second of ours, and ratios to the builder.
    """
    seconds, runners = seconds_of({**paths, _AGAIN: paths["builder"]}, new, past, runs)
    if "int4" not in str(paths["fxonnx"]):
        for name, runner in runners.items():
            error = np.abs(runner.logits() - runners["builder"].logits()).max()
            if error > _TOLERANCE:
                print(f"{name}: logits differ from the builder's by {error}", file=sys.stderr)
    least = {name: min(found) for name, found in seconds.items()}
    row: dict[str, Any] = {f"{name} ms": least[name] * 1000 for name in paths}
    row["tokens/s"] = new / least["fxonnx"]
    for name in ("fxonnx", "torch.onnx", _AGAIN):
        if name in least:
            row[f"{name}/builder"] = ratio(seconds[name], seconds["builder"])
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    """Export, measure, print the table and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama,qwen3")
    parser.add_argument("--precisions", default="fp32,int4")
    parser.add_argument("--exporters", default=",".join(EXPORTERS))
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    import_torchvision()
    rows: list[dict[str, Any]] = []
    for name in options.models.split(","):
        model = build(name)
        for precision in options.precisions.split(","):
            with tempfile.TemporaryDirectory() as folder:
                paths = {}
                for exporter in options.exporters.split(","):
                    paths[exporter] = Path(folder, f"{exporter}-{precision}", "model.onnx")
                    paths[exporter].parent.mkdir()
                    with silenced():
                        EXPORTERS[exporter](model, paths[exporter], precision)
                for step, (new, past, runs) in STEPS.items():
                    rows.append({"model": f"{name} {precision}, {step}", **measure(paths, new, past, runs)})
                    print(rows[-1], file=sys.stderr)
    complete = with_means(rows, ("fxonnx/builder", "torch.onnx/builder", f"{_AGAIN}/builder"))
    header = list(rows[0])
    print_table("Language models", header, [[text(row.get(key)) for key in header] for row in complete])
    write_json(options.json, {"rows": complete})


if __name__ == "__main__":
    main()
