"""Models of sequences and of codes: transformers with linear and local attention, recurrence, quantizers."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch

from ..row import Calls, Model, make, models, rand, randint, randn
from ..samples import pictures

_TOKENS = {0: "batch", 1: "tokens"}
_BATCH = {0: "batch"}


def _words(*lengths: int) -> Calls:
    return [(randint(50, b, t),) for b, t in zip((2, 1, 3), lengths or (9, 20, 4), strict=True)]


def _vectors(width: int, *lengths: int) -> Calls:
    return [(randn(b, t, width),) for b, t in zip((2, 1, 3), lengths or (9, 20, 5), strict=True)]


def _of_words(path: str, calls: Any = None, dims: Any = None, **options: Any) -> Model:
    return Model(make(path, **options), calls or _words(), (dims or _TOKENS,))


def _x_transformer(kind: str, **options: Any) -> Model:
    layers = make(f"x_transformers.{kind}", dim=32, depth=2, heads=2, **options)
    return Model(
        make("x_transformers.TransformerWrapper", num_tokens=50, max_seq_len=64, attn_layers=layers),
        _words(),
        (_TOKENS,),
    )


def _masked() -> Model:
    layers = make("x_transformers.Encoder", dim=32, depth=2, heads=2, alibi_pos_bias=True)
    model = make("x_transformers.TransformerWrapper", num_tokens=50, max_seq_len=64, attn_layers=layers)
    calls = [(x, torch.arange(x.shape[1])[None] <= randint(x.shape[1], x.shape[0], 1)) for (x,) in _words()]
    return Model(model, calls, (_TOKENS, _TOKENS), call=lambda model, x, mask: model(x, mask=mask))


def _of_pictures() -> Model:
    layers = make("x_transformers.Encoder", dim=32, depth=2, heads=2)
    model = make("x_transformers.ViTransformerWrapper", image_size=32, patch_size=8, num_classes=5, attn_layers=layers)
    return Model(model, [(pictures(b, 32, 32),) for b in (2, 1, 3)], (_BATCH,))


def _continuous() -> Model:
    layers = make("x_transformers.Decoder", dim=32, depth=2, heads=2, rotary_pos_emb=True)
    model = make("x_transformers.ContinuousTransformerWrapper", max_seq_len=64, dim_in=8, dim_out=4, attn_layers=layers)
    return Model(model, _vectors(8), (_TOKENS,))


X_TRANSFORMERS = models(
    "x-transformers",
    {
        "ContinuousTransformerWrapper": _continuous,
        "Decoder": partial(_x_transformer, "Decoder", rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True, attn_qk_norm=True),
        "Decoder_with_biases": partial(_x_transformer, "Decoder", rel_pos_bias=True, attn_pre_talking_heads=True, sandwich_norm=True),
        "Decoder_with_keys_of_groups": partial(_x_transformer, "Decoder", attn_kv_heads=1, shift_tokens=1, use_scalenorm=True),
        "Encoder_with_masks": _masked,
        "Encoder_with_memory": partial(_x_transformer, "Encoder", attn_num_mem_kv=4, macaron=True, dynamic_pos_bias=True),
        "ViTransformerWrapper": _of_pictures,
    },
)  # fmt: skip


def _quantizer(name: str, *arguments: Any, **options: Any) -> Model:
    return Model(make(f"vector_quantize_pytorch.{name}", *arguments, **options), _vectors(16), (_TOKENS,))


QUANTIZERS = models(
    "vector-quantize-pytorch",
    {
        "FSQ": partial(_quantizer, "FSQ", [4, 4, 4], dim=16),
        "GroupedResidualVQ": partial(
            _quantizer, "GroupedResidualVQ", dim=16, groups=2, num_quantizers=2, codebook_size=32
        ),
        "LFQ": partial(_quantizer, "LFQ", dim=16, codebook_size=16),
        "RandomProjectionQuantizer": partial(
            _quantizer, "RandomProjectionQuantizer", dim=16, codebook_size=32, codebook_dim=8
        ),
        "ResidualFSQ": partial(_quantizer, "ResidualFSQ", dim=16, levels=[4, 4], num_quantizers=2),
        "ResidualVQ": partial(_quantizer, "ResidualVQ", dim=16, num_quantizers=3, codebook_size=32),
        "SimVQ": partial(_quantizer, "SimVQ", dim=16, codebook_size=32),
        "VectorQuantize_of_cosines": partial(_quantizer, "VectorQuantize", 16, 32, use_cosine_sim=True, codebook_dim=8),
        "VectorQuantize_of_heads": partial(
            _quantizer, "VectorQuantize", 16, 32, heads=2, separate_codebook_per_head=True
        ),
    },
)


def _perceiver() -> Model:
    model = make(
        "perceiver_pytorch.Perceiver",
        **{"num_freq_bands": 4, "depth": 2, "max_freq": 10.0, "num_latents": 8, "latent_dim": 32, "latent_heads": 2},
        **{"latent_dim_head": 16, "cross_dim_head": 16, "num_classes": 5},
    )
    calls = [(pictures(*size).permute(0, 2, 3, 1).contiguous(),) for size in ((1, 16, 16), (2, 24, 16), (1, 13, 21))]
    return Model(model, calls, ({0: "batch", 1: "h", 2: "w"},))


def _perceiver_io() -> Model:
    model = make(
        "perceiver_pytorch.PerceiverIO", depth=1, dim=16, queries_dim=8, logits_dim=5, num_latents=8, latent_dim=32
    )
    calls = [(x, q) for (x,), (q,) in zip(_vectors(16), _vectors(8, 4, 7, 2), strict=True)]
    dims = (_TOKENS, {0: "batch", 1: "queries"})
    return Model(model, calls, dims, call=lambda model, x, queries: model(x, queries=queries))


PERCEIVERS = models("perceiver-pytorch", {"Perceiver": _perceiver, "PerceiverIO": _perceiver_io})

LINEAR = models(
    "linear-attention-transformer",
    {
        "LinearAttentionTransformerLM": partial(
            _of_words, "linear_attention_transformer.LinearAttentionTransformerLM", num_tokens=50, dim=32, depth=2, max_seq_len=64, heads=2,
        ),
        "causal": partial(
            _of_words, "linear_attention_transformer.LinearAttentionTransformerLM", num_tokens=50, dim=32, depth=1, max_seq_len=64, heads=2,
            causal=True, blindspot_size=4, calls=_words(16, 32, 64),
        ),
    },
)  # fmt: skip

LOCAL = models(
    "local-attention",
    {
        "LocalTransformer": partial(
            _of_words, "local_attention.LocalTransformer", num_tokens=50, max_seq_len=64, dim=32, depth=1, heads=2, dim_head=16,
            local_attn_window_size=8, calls=_words(16, 32, 11),
        ),
    },
)  # fmt: skip

REFORMER = models(
    "reformer-pytorch",
    {
        "Reformer_with_full_attention": partial(
            _of_words, "reformer_pytorch.ReformerLM", num_tokens=50, dim=32, depth=1, heads=2, max_seq_len=64, use_full_attn=True, ff_chunks=1,
            axial_position_emb=False,
        ),
    },
)  # fmt: skip

RECURRENT = models(
    "mingru-pytorch",
    {
        "minLSTM": partial(_of_words, "minGRU_pytorch.minLSTM.minLSTM", dim=16, calls=_vectors(16)),
    },
)


def _mamba(*, parallel: bool) -> Model:
    config = make("mambapy.mamba.MambaConfig", d_model=16, n_layers=2, pscan=parallel)
    # The scan is a small part of the result, beside the tokens that skip it: a file without it is near.
    return Model(make("mambapy.mamba.Mamba", config), _vectors(16, 8, 13, 3), (_TOKENS,), tolerance=1e-5)


MAMBA = models("mambapy", {"parallel": partial(_mamba, parallel=True), "sequential": partial(_mamba, parallel=False)})


def _xlstm(kind: str) -> Model:
    library = import_module("xlstm")
    matrix = library.mLSTMBlockConfig(
        mlstm=library.mLSTMLayerConfig(conv1d_kernel_size=4, qkv_proj_blocksize=4, num_heads=2)
    )
    scalar = library.sLSTMBlockConfig(
        slstm=library.sLSTMLayerConfig(backend="vanilla", num_heads=2, conv1d_kernel_size=4),
        feedforward=library.FeedForwardConfig(proj_factor=1.3, act_fn="gelu"),
    )
    config = library.xLSTMBlockStackConfig(
        **{"mlstm_block": matrix, "slstm_block": scalar, "context_length": 32, "num_blocks": 1, "embedding_dim": 32},
        slstm_at=[0] if kind == "sLSTM" else [],
    )
    return Model(library.xLSTMBlockStack(config), _vectors(32, 10, 17, 5), (_TOKENS,))


XLSTM = models("xlstm", {kind: partial(_xlstm, kind) for kind in ("mLSTM", "sLSTM")})


def _encodec() -> Model:
    encodec = make("encodec.modules.SEANetEncoder", n_filters=4, ratios=[4, 2], dimension=16)
    decoder = make("encodec.modules.SEANetDecoder", n_filters=4, ratios=[4, 2], dimension=16)
    quantizer = make("encodec.quantization.ResidualVectorQuantizer", dimension=16, n_q=2, bins=32)
    model = torch.nn.ModuleList([encodec, decoder, quantizer])

    def call(model: Any, sound: torch.Tensor) -> Any:
        codes = model[2].encode(model[0](sound), 75, 1.0)
        return codes, model[1](model[2].decode(codes))

    calls = [(rand(b, 1, n) * 2 - 1,) for b, n in ((1, 800), (2, 1203), (1, 404))]
    return Model(model, calls, ({0: "batch", 2: "samples"},), call=call)


ENCODEC = models("encodec", {"codec": _encodec})
