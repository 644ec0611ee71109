"""Our graphs beside those that ONNX Runtime's optimizer for transformers makes of torch.onnx's.

    python -m benchmarks.graph_optimizers [--models bert,vit] [--json optimizers.json]

``optimum O2`` and ``optimum O3`` are the settings of optimum's levels: all fusions of the optimizer and of the
session, O3 with an approximation of GELU. Ours are the default graph and the one with ``target="onnxruntime"``, both of
ONNX operators only. All of one network run alternately on one thread in one process; milliseconds are medians, and
ratios are ours over the faster of the optimizer's graphs. The difference is the largest one from eager torch, over its
largest value. Where torch.onnx fails, the optimizer gets the file of its TorchScript exporter.
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.models.torchvision_shim import import_torchvision

from ._exporters import ours, silenced, torch_onnx, torchscript
from ._output import print_table, text, with_means, write_json
from ._zoo import REAL, Network, trained, vae_decoder
from .graphs import content_of, run_times, session_of

SECONDS = 12.0
SESSIONS = 3
OURS = ("default", "onnxruntime")
THEIRS = ("torch.onnx", "TorchScript", "optimum O2", "optimum O3")


class _Encoder(nn.Module):
    """A network of transformers that takes one tensor and returns one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> Tensor:
        result: Tensor = self.model(*tensors)[0]
        return result


@dataclass(frozen=True)
class Optimized:
    """A network, and its properties that the optimizer has to know.

    Attributes:
        kind: The optimizer's ``model_type``.
        make: The network.
        heads: Attention heads; 0 for the optimizer to find them.
        width: Hidden size; 0 for the optimizer to find it.
    """

    kind: str
    make: Callable[[], Network]
    heads: int = 0
    width: int = 0


def _gpt2(length: int) -> Network:
    import_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=6, vocab_size=5000, use_cache=False))
    return Network(trained(model), (), {"input_ids": torch.randint(3, 200, (1, length))})


class _T5(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=input_ids, decoder_input_ids=decoder_input_ids, use_cache=False).logits
        return logits


def _t5(length: int) -> Network:
    import_torchvision()
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(T5Config(vocab_size=5000, decoder_start_token_id=0))
    tokens = torch.randint(3, 200, (1, length)), torch.randint(3, 200, (1, 16))
    return Network(_T5(trained(model)).eval(), tokens, axes=({}, {}))


def _whisper() -> Network:
    import_torchvision()
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536)
    return Network(_Encoder(trained(WhisperEncoder(config))).eval(), (torch.randn(1, 80, 3000),))


def _clip() -> Network:
    import_torchvision()
    from transformers import CLIPVisionConfig, CLIPVisionModel

    return Network(_Encoder(trained(CLIPVisionModel(CLIPVisionConfig()))).eval(), (torch.randn(1, 3, 224, 224),))


def _unet() -> Network:
    import_torchvision()
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        block_out_channels=(128, 256),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=256,
    )
    inputs = (torch.randn(1, 4, 32, 32), torch.tensor([3]), torch.randn(1, 77, 256))
    return Network(_Encoder(trained(model)).eval(), inputs, axes=({}, {}, {}))


NETWORKS: Mapping[str, Optimized] = MappingProxyType(
    {
        "bert": Optimized("bert", REAL["bert_base"], 12, 768),
        "gpt2": Optimized("gpt2", partial(_gpt2, 128), 12, 768),
        "t5": Optimized("t5", partial(_t5, 128), 8, 512),
        "whisper": Optimized("bart", _whisper, 6, 384),
        "vit": Optimized("vit", REAL["vit_b_16"], 12, 768),
        "swin": Optimized("swin", REAL["swin_t"]),
        "clip": Optimized("clip", _clip, 12, 768),
        "unet": Optimized("unet", _unet),
        "vae": Optimized("vae", partial(vae_decoder, (64, 128), 32, (1, 4, 24, 24))),
    }
)


def optimized(network: Optimized, path: Path, *, approximate: bool) -> bytes:
    """The file after the optimizer with the settings of optimum's level O2, or O3 if GELU is approximated."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    options = FusionOptions(network.kind)
    options.enable_gelu_approximation = approximate
    if network.kind in ("unet", "vae"):
        # ONNX Runtime has these operators for GPUs only.
        options.enable_nhwc_conv = options.enable_group_norm = options.enable_skip_group_norm = False
        options.enable_packed_kv = options.enable_packed_qkv = options.enable_bias_splitgelu = False
        options.enable_bias_add = False
    found = optimizer.optimize_model(
        str(path), network.kind, network.heads, network.width, opt_level=2, optimization_options=options, use_gpu=False
    )
    content: bytes = found.model.SerializeToString()
    return content


def contents_of(entry: Optimized, network: Network, folder: Path) -> dict[str, bytes]:
    """The files by name; without those that an exporter or the optimizer fails to make."""
    makers: dict[str, Callable[[], bytes]] = {
        "default": lambda: content_of(ours(network)),
        "onnxruntime": lambda: content_of(ours(network, 23, target="onnxruntime")),
        "torch.onnx": lambda: content_of(torch_onnx(network)),
        "TorchScript": lambda: content_of(torchscript(network, 17)),
    }
    path = folder / "model.onnx"
    makers |= {f"optimum {level}": partial(optimized, entry, path, approximate=level == "O3") for level in ("O2", "O3")}
    contents: dict[str, bytes] = {}
    for name, make in makers.items():
        if name == "TorchScript" and "torch.onnx" in contents:
            continue
        try:
            with silenced():
                contents[name] = make()
            session_of(contents[name])
        except Exception as error:
            if name in OURS:
                raise
            sys.stderr.write(f"  {name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}\n")
            contents.pop(name, None)
        if name in ("torch.onnx", "TorchScript") and name in contents:
            path.write_bytes(contents[name])
    return contents


def measure(network: Network, contents: Mapping[str, bytes]) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of a run of each file, and its difference from eager torch."""
    arrays = [tensor.numpy() for tensor in network.tensors()]
    with torch.no_grad():
        results = network.model(*network.args, **network.kwargs)
    expected = [leaf.numpy() for leaf in torch.utils._pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
    order = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in contents}
    differences = {}
    for _ in range(SESSIONS):
        runs: dict[str, Callable[[], Any]] = {}
        for name in order.sample(list(contents), len(contents)):
            session = session_of(contents[name])
            feed = dict(zip((value.name for value in session.get_inputs()), arrays, strict=True))
            runs[name] = lambda session=session, feed=feed: session.run(None, feed)
            found = runs[name]()
            differences[name] = max(
                float(np.abs(one - other).max() / np.abs(other).max())
                for one, other in zip(found, expected, strict=False)
            )
        for name, seconds in run_times(runs, SECONDS / SESSIONS, order).items():
            times[name] += seconds
    return {name: statistics.median(values) for name, values in times.items()}, differences


def row_of(name: str, seconds: Mapping[str, float], differences: Mapping[str, float]) -> dict[str, Any]:
    """The table's row."""
    best = min(seconds[other] for other in THEIRS if other in seconds and other.startswith("optimum"))
    row: dict[str, Any] = {"model": name, "ms": 1000 * seconds["default"]}
    row |= {f"{one} ms": 1000 * seconds[one] for one in THEIRS if one in seconds}
    row |= {f"{one}/optimizer": seconds[one] / best for one in OURS}
    return row | {f"difference {one}": differences[one] for one in ("onnxruntime", "optimum O3") if one in differences}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the table and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(NETWORKS))
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rows, details = [], {}
    for name in options.models.split(","):
        torch.manual_seed(0)
        entry = NETWORKS[name]
        network = entry.make()
        with tempfile.TemporaryDirectory() as folder:
            contents = contents_of(entry, network, Path(folder))
        seconds, differences = measure(network, contents)
        rows.append(row_of(name, seconds, differences))
        details[name] = {"seconds": seconds, "differences": differences}
        sys.stderr.write(f"{name}: {' '.join(f'{key} {text(value)}' for key, value in rows[-1].items())}\n")
    table = with_means(rows, [key for key in rows[0] if "/" in key])
    keys = list(dict.fromkeys(key for row in table for key in row))
    print_table("Optimizers of graphs", keys, [[text(row.get(key)) for key in keys] for row in table])
    write_json(options.json, {"rows": table, "details": details})


if __name__ == "__main__":
    main()
