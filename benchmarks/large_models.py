"""Models that are larger than one file or than memory: peak memory, bytes copied, and whether ONNX Runtime loads them.

    python -m benchmarks.large_models [meta] [reference] [five] [int4] [genai]

Each case runs in a process of its own. ``meta``: a Llama of 7B parameters without weights. ``reference``: 2 GB of
weights in two safetensors files that the model points into. ``five``: 5 GB of weights, exported and saved. ``int4``: a
Llama of 7B parameters without weights, saved in 4 bits from 13 GB of safetensors files; it takes 17 GB of disk.
``genai``: the same by ``fxonnx.genai.export``, from its directory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

CASES = ("meta", "reference", "five", "int4", "genai")
MIB = 2**20


class Peak:
    """The largest resident memory of this process in the body of a ``with``, in MiB."""

    def __enter__(self) -> Peak:
        import psutil

        self.mib = 0.0
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.mib = max(self.mib, self._process.memory_info().rss / MIB)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def llama(**config: Any) -> Any:
    from tests.models.torchvision_shim import import_torchvision

    import_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**config)).eval()


def exported(model: Any, **options: Any) -> Any:
    import torch

    import fxonnx

    inputs = {"input_ids": torch.zeros(1, 8, dtype=torch.long), "use_cache": False}
    return fxonnx.export(model, kwargs=inputs, dynamic_shapes={"input_ids": {0: "batch", 1: "tokens"}}, **options)


def meta(directory: Path) -> str:
    import torch

    with Peak() as peak:
        with torch.device("meta"):
            model = llama()
        began = time.perf_counter()
        program = exported(model)
        seconds = time.perf_counter() - began
        program.apply_weights({"model.rotary_emb.inv_freq": torch.rand(64)})
        program.save(directory / "m.onnx", include_initializers=False)
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"{count / 1e9:.2f}e9 parameters: {seconds:.1f} s, peak {peak.mib:.0f} MiB in all (allowed 2048)"


def reference(directory: Path) -> str:
    import onnxruntime
    import torch
    from safetensors.torch import save_file

    import fxonnx

    config = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 9, "num_key_value_heads": 4}
    torch.manual_seed(0)
    model = llama(**config)
    state = model.state_dict()
    names = list(state)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: state[name] for name in part}, directory / f"{number}.safetensors")
    total = sum(file.stat().st_size for file in directory.iterdir())
    ids = torch.randint(0, 32000, (1, 5))
    expected = model(ids, use_cache=False).logits.detach()
    frequencies = model.model.rotary_emb.inv_freq.clone()
    with torch.device("meta"):
        empty = llama(**config)
    program = exported(empty)
    weights = [directory, {"model.rotary_emb.inv_freq": frequencies}]
    program.save(directory / "m.onnx", weights=weights, external_data=fxonnx.REFERENCE)
    written = sum(file.stat().st_size for file in directory.iterdir()) - total
    session = onnxruntime.InferenceSession(directory / "m.onnx")
    found = torch.from_numpy(session.run(None, {"input_ids": ids.numpy()})[0])
    error = (found - expected).abs().max().item()
    return (
        f"{total / 2**30:.2f} GiB in safetensors: {written / MIB:.1f} MiB written, {100 * written / total:.2f} % "
        f"(allowed 5), max error {error:.1e}"
    )


def five(directory: Path) -> str:
    import onnxruntime
    import psutil
    import torch

    import fxonnx

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(80))).eval()
    size = sum(tensor.nbytes for tensor in model.state_dict().values()) / MIB
    x = torch.randn(1, 2, 4096)
    with Peak() as peak:
        before = psutil.Process().memory_info().rss / MIB
        fxonnx.export(model, (x,)).save(directory / "m.onnx")
    expected = model(x).detach()
    del model
    found = torch.from_numpy(onnxruntime.InferenceSession(directory / "m.onnx").run(None, {"input": x.numpy()})[0])
    error = (found - expected).abs().max().item()
    return (
        f"{size / 1024:.2f} GiB of weights: peak {peak.mib - size:.0f} MiB above them (allowed 500), of which "
        f"{before - size:.0f} before the export; max error {error:.1e}"
    )


def write_checkpoint(directory: Path) -> Any:
    """A Llama of 7B parameters in float16, as safetensors files; the model is on the meta device."""
    import torch
    from safetensors.torch import save_file

    with torch.device("meta"):
        model = llama().half()
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in model.state_dict().items():
        parts.setdefault(name.split(".")[2] if ".layers." in name else "rest", {})[name] = tensor
    content = {tensor.shape: 0.02 * torch.randn(tensor.shape) for tensor in model.state_dict().values()}
    for part, tensors in parts.items():
        values = {name: content[tensor.shape].half() for name, tensor in tensors.items()}
        save_file(values, directory / f"{part}.safetensors")
    return model


def int4(directory: Path) -> str:
    import torch

    model = write_checkpoint(directory)
    total = sum(file.stat().st_size for file in directory.iterdir())
    with Peak() as peak:
        began = time.perf_counter()
        program = exported(model, quantize="int4", target="onnxruntime-genai")
        exporting = time.perf_counter() - began
        frequencies = {"model.rotary_emb.inv_freq": torch.rand(64).half()}
        program.save(directory / "m.onnx", weights=[directory, frequencies], external_data=True)
        saving = time.perf_counter() - began - exporting
    written = sum(file.stat().st_size for file in directory.glob("m.onnx*"))
    return (
        f"{total / 2**30:.1f} GiB of float16 become {written / 2**30:.1f} GiB: {exporting:.1f} s and {saving:.0f} s, "
        f"peak {peak.mib:.0f} MiB in all (allowed 2048)"
    )


def by_genai(directory: Path) -> str:
    from fxonnx import genai
    from tests.genai.small_models import make_tokenizer

    source = directory / "checkpoint"
    source.mkdir()
    model = write_checkpoint(source)
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(source)
    tokenizer = make_tokenizer()
    with Peak() as peak:
        began = time.perf_counter()
        genai.export(source, directory / "out", tokenizer=tokenizer, precision="int4", verify=False)
        seconds = time.perf_counter() - began
    written = sum(file.stat().st_size for file in (directory / "out").iterdir())
    return f"{written / 2**30:.1f} GiB in {seconds:.0f} s, peak {peak.mib:.0f} MiB in all (allowed 1536)"


def main() -> None:
    names = sys.argv[1:] or CASES
    if len(names) == 2 and names[0] == "--in-process":
        warnings.simplefilter("ignore")
        with tempfile.TemporaryDirectory() as directory:
            case = {"meta": meta, "reference": reference, "five": five, "int4": int4, "genai": by_genai}[names[1]]
            sys.stdout.write(f"{names[1]}: {case(Path(directory))}\n")
        return
    for name in names:
        subprocess.run([sys.executable, "-m", "benchmarks.large_models", "--in-process", name], check=True)


if __name__ == "__main__":
    main()
