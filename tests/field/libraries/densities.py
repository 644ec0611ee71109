"""Normalizing flows: the logarithms of densities, and their inverses."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ..row import Model, models, rand, randn

_ROWS = {0: "batch"}


def _zuko(name: str, *, inputs: Any = randn, **options: Any) -> Model:
    flow = getattr(import_module("zuko.flows"), name)(3, 2, **options)
    calls = [(inputs(n, 3), randn(n, 2, seed=1)) for n in (4, 1, 9)]
    return Model(flow, calls, (_ROWS, _ROWS), call=lambda model, x, c: model(c).log_prob(x))


_SMALL: dict[str, Any] = {"transforms": 2, "hidden_features": (16, 16)}

ZUKO = models(
    "zuko",
    {
        "BPF": partial(_zuko, "BPF", degree=4, **_SMALL),
        "GF": partial(_zuko, "GF", components=4, **_SMALL),
        "GMM": partial(_zuko, "GMM", components=4),
        "MAF": partial(_zuko, "MAF", **_SMALL),
        "NAF": partial(_zuko, "NAF", transforms=1, signal=4, network={"hidden_features": (16,)}),
        "NCSF": partial(_zuko, "NCSF", inputs=rand, **_SMALL),
        "NICE": partial(_zuko, "NICE", **_SMALL),
        "RealNVP": partial(_zuko, "RealNVP", **_SMALL),
        "SOSPF": partial(_zuko, "SOSPF", degree=2, polynomials=2, **_SMALL),
    },
)


def _nflows(kind: str) -> Model:
    flows = import_module("nflows.flows")
    options = {"features": 4, "hidden_features": 16, "num_layers": 2, "num_blocks_per_layer": 1}
    model = flows.SimpleRealNVP(**options) if kind == "SimpleRealNVP" else flows.MaskedAutoregressiveFlow(**options)
    return Model(model, [(randn(n, 4),) for n in (4, 1, 9)], (_ROWS,), call=lambda model, x: model.log_prob(x))


def _spline(name: str) -> Model:
    transforms, networks = import_module("nflows.transforms"), import_module("nflows.nn.nets")
    model = getattr(transforms, name)(
        **{"mask": torch.tensor([1, 0, 1, 0]), "num_bins": 4, "tails": "linear", "tail_bound": 3.0},
        transform_net_create_fn=lambda before, after: networks.ResidualNet(
            before, after, hidden_features=16, num_blocks=1
        ),
    )
    return Model(model, [(randn(n, 4) * 2,) for n in (4, 1, 9)], (_ROWS,))


NFLOWS = models(
    "nflows",
    {
        "MaskedAutoregressiveFlow": partial(_nflows, "MaskedAutoregressiveFlow"),
        "SimpleRealNVP": partial(_nflows, "SimpleRealNVP"),
        **{
            name: partial(_spline, name)
            for name in (
                "PiecewiseQuadraticCouplingTransform",
                "PiecewiseCubicCouplingTransform",
                "PiecewiseRationalQuadraticCouplingTransform",
            )
        },
    },
)


def _normflows(make: Any, width: int = 4) -> Model:
    library = import_module("normflows")
    model = library.NormalizingFlow(library.distributions.DiagGaussian(width), [make(library) for _ in range(2)])
    return Model(model, [(randn(n, width),) for n in (4, 1, 9)], (_ROWS,), call=lambda model, x: model.log_prob(x))


NORMFLOWS = models(
    "normflows",
    {
        "AffineCouplingBlock": lambda: _normflows(
            lambda library: library.flows.AffineCouplingBlock(library.nets.MLP([2, 16, 4], init_zeros=False))
        ),
        "AutoregressiveRationalQuadraticSpline": lambda: _normflows(
            lambda library: library.flows.AutoregressiveRationalQuadraticSpline(4, 1, 16, num_bins=4)
        ),
        "CoupledRationalQuadraticSpline": lambda: _normflows(
            lambda library: library.flows.CoupledRationalQuadraticSpline(4, 1, 16, num_bins=4)
        ),
        "LULinearPermute": lambda: _normflows(lambda library: library.flows.LULinearPermute(4)),
        "MaskedAffineAutoregressive": lambda: _normflows(
            lambda library: library.flows.MaskedAffineAutoregressive(4, 16)
        ),
    },
)


def _operator(name: str, *, sizes: Any = ((1, 32, 32), (2, 48, 32), (1, 24, 40)), **options: Any) -> Model:
    make = getattr(import_module("neuralop.models"), name)
    model: nn.Module = make(in_channels=1, out_channels=1, hidden_channels=8, **options)
    dims = {0: "batch", 2: "h", 3: "w"} if len(sizes[0]) == 3 else {0: "batch", 2: "n"}
    return Model(model, [(randn(size[0], 1, *size[1:]),) for size in sizes], (dims,))


OPERATORS = models(
    "neuraloperator",
    {
        "FNO_1d": partial(_operator, "FNO", n_modes=(8,), n_layers=2, sizes=((1, 32), (2, 48), (1, 25))),
        "FNO_2d": partial(_operator, "FNO", n_modes=(8, 8), n_layers=2),
        "TFNO": partial(_operator, "TFNO", n_modes=(8, 8), n_layers=2),
    },
)  # fmt: skip
