"""Tables, time series, recommendation, decisions, and distributions."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ..row import Model, models, rand, randint, randn, row

_ROWS = {0: "batch"}


@row("rtdl_revisiting_models")
def ft_transformer() -> Model:
    from rtdl_revisiting_models import FTTransformer

    options = FTTransformer.get_default_kwargs(n_blocks=1)
    model = FTTransformer(n_cont_features=4, cat_cardinalities=[3, 5], d_out=2, **options)
    calls = [(randn(n, 4), randint(3, n, 2)) for n in (3, 1, 8)]
    return Model(model, calls, (_ROWS, _ROWS))


@row("tabm")
def tabm() -> Model:
    from tabm import TabM

    model = TabM.make(n_num_features=4, cat_cardinalities=[3, 5], d_out=2, d_block=16, n_blocks=2, k=4)
    return Model(model, [(randn(n, 4), randint(3, n, 2)) for n in (3, 1, 8)], (_ROWS, _ROWS))


def _embeddings(name: str, **options: Any) -> Model:
    make = getattr(import_module("rtdl_num_embeddings"), name)
    return Model(make(4, 8, **options), [(randn(n, 4),) for n in (3, 1, 8)], (_ROWS,))


EMBEDDINGS = models(
    "rtdl-num-embeddings",
    {
        "LinearReLUEmbeddings": partial(_embeddings, "LinearReLUEmbeddings"),
    },
)


def _tabnet(mask: str) -> Model:
    from pytorch_tabnet.tab_network import TabNet

    groups = torch.eye(6)
    model = TabNet(6, 3, cat_idxs=[1], cat_dims=[4], cat_emb_dim=[2], mask_type=mask, group_attention_matrix=groups)
    calls = [(torch.cat([randn(n, 1), randint(4, n, 1).float(), randn(n, 4, seed=1)], 1),) for n in (5, 1, 9)]
    return Model(model, calls, (_ROWS,))


TABNET = models("pytorch-tabnet", {name: partial(_tabnet, name) for name in ("entmax",)})


@row("chronos-forecasting")
def chronos_bolt() -> Model:
    from chronos.chronos_bolt import ChronosBoltModelForForecasting
    from transformers import T5Config

    config = T5Config(
        **{"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4},
        **{"vocab_size": 2, "pad_token_id": 0, "decoder_start_token_id": 0, "feed_forward_proj": "relu"},
    )
    config.chronos_config = {
        **{"context_length": 64, "prediction_length": 8, "input_patch_size": 8, "input_patch_stride": 8},
        **{"quantiles": [0.1, 0.5, 0.9], "use_reg_token": True},
    }
    calls = [(randn(b, t),) for b, t in ((2, 48), (1, 64), (3, 37))]
    model = ChronosBoltModelForForecasting(config)
    return Model(model, calls, ({0: "batch", 1: "time"},), call=lambda model, x: model(context=x).quantile_preds)


@row("iTransformer")
def inverted_transformer() -> Model:
    from iTransformer import iTransformer

    model = iTransformer(num_variates=5, lookback_len=16, dim=16, depth=2, heads=2, dim_head=8, pred_length=(4, 8))
    calls = [(randn(n, 16, 5),) for n in (2, 1, 3)]
    return Model(model, calls, (_ROWS,), call=lambda model, x: list(model(x).values()))


@row("pytorch-tcn")
def temporal_convolution() -> Model:
    from pytorch_tcn import TCN

    model = TCN(num_inputs=4, num_channels=[8, 8], kernel_size=3, causal=True)
    return Model(model, [(randn(b, 4, t),) for b, t in ((2, 20), (1, 33), (3, 5))], ({0: "batch", 2: "time"},))


@row("stable-baselines3")
def discrete() -> Model:
    import gymnasium
    from stable_baselines3.common.policies import ActorCriticPolicy

    policy = ActorCriticPolicy(gymnasium.spaces.Box(-1, 1, (8,)), gymnasium.spaces.Discrete(4), lambda _: 1e-3)
    calls = [(rand(n, 8),) for n in (2, 1, 5)]
    return Model(policy, calls, (_ROWS,), call=lambda model, x: model(x, deterministic=True))


@row("pytorch-crf")
def crf_likelihood() -> Model:
    from torchcrf import CRF

    def call(batch: int, time: int) -> tuple[torch.Tensor, ...]:
        lengths = 1 + randint(time, batch, 1)
        mask = torch.arange(time)[None] < lengths
        return randn(batch, time, 5), randint(5, batch, time), mask

    dims = ({0: "batch", 1: "tokens"},) * 3
    return Model(CRF(5, batch_first=True), [call(2, 7), call(3, 12), call(1, 4)], dims)


def _flow(name: str) -> Model:
    flows = import_module("zuko.flows")
    flow = getattr(flows, name)(3, 2, transforms=2, hidden_features=(16, 16))
    calls = [(randn(n, 3), randn(n, 2, seed=1)) for n in (4, 1, 9)]
    return Model(flow, calls, (_ROWS, _ROWS), call=lambda model, x, c: model(c).log_prob(x))


ZUKO = models("zuko", {name: partial(_flow, name) for name in ("NSF",)})


@row("freia")
def invertible_network() -> Model:
    framework, modules = import_module("FrEIA.framework"), import_module("FrEIA.modules")
    torch.manual_seed(0)
    network = framework.SequenceINN(4)
    for _ in range(2):
        network.append(
            modules.AllInOneBlock,
            subnet_constructor=lambda i, o: nn.Sequential(nn.Linear(i, 8), nn.ReLU(), nn.Linear(8, o)),
        )
    return Model(network, [(randn(n, 4),) for n in (4, 1, 9)], (_ROWS,))


@row("torchdiffeq")
def neural_ode() -> Model:
    from torchdiffeq import odeint

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))

        def forward(self, time: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            return self.layers(state) * time.cos()

    times = torch.linspace(0, 1, 5)
    calls = [(randn(n, 3),) for n in (4, 1, 9)]
    return Model(Field(), calls, (_ROWS,), call=lambda model, x: odeint(model, x, times, method="rk4"))


@row("gpytorch")
def rbf_kernel() -> Model:
    import gpytorch

    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    calls = [(randn(n, 3), randn(m, 3, seed=1)) for n, m in ((4, 6), (9, 2), (5, 5))]
    dims = ({0: "n"}, {0: "m"})
    return Model(kernel, calls, dims, call=lambda model, x, y: model(x, y).to_dense())


@row("pytorch-metric-learning")
def cosine_similarity() -> Model:
    from pytorch_metric_learning.distances import CosineSimilarity

    calls = [(randn(n, 8), randn(m, 8, seed=1)) for n, m in ((3, 4), (7, 2), (1, 5))]
    return Model(CosineSimilarity(), calls, ({0: "n"}, {0: "m"}))
