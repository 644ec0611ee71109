"""Kernels, losses, attributions, transforms of lines, policies, and small perceptrons."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ..row import Calls, Model, make, models, rand, randint, randn
from ..samples import HW, pictures

_ROWS = {0: "batch"}


def _kernel(name: str, **options: Any) -> Model:
    kernel = make(f"gpytorch.kernels.{name}", **options)
    calls = [(rand(n, 3), rand(m, 3, seed=1)) for n, m in ((4, 6), (9, 2), (5, 5))]
    return Model(kernel, calls, ({0: "n"}, {0: "m"}), call=lambda model, x, y: model(x, y).to_dense())


KERNELS = models(
    "gpytorch",
    {
        "ArcKernel": lambda: _kernel("ArcKernel", base_kernel=make("gpytorch.kernels.MaternKernel", nu=2.5)),
        "CosineKernel": partial(_kernel, "CosineKernel"),
        "LinearKernel": partial(_kernel, "LinearKernel"),
        "MaternKernel": partial(_kernel, "MaternKernel", nu=1.5, ard_num_dims=3),
        "PeriodicKernel": partial(_kernel, "PeriodicKernel"),
        "PiecewisePolynomialKernel": partial(_kernel, "PiecewisePolynomialKernel", q=2),
        "PolynomialKernel": partial(_kernel, "PolynomialKernel", power=2),
        "RQKernel": partial(_kernel, "RQKernel"),
        "SpectralMixtureKernel": partial(_kernel, "SpectralMixtureKernel", num_mixtures=3, ard_num_dims=3),
    },
)


def _regression() -> Model:
    """The posterior of a process, whose data are constants."""
    gpytorch = import_module("gpytorch")

    class Process(gpytorch.models.ExactGP):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            likelihood = gpytorch.likelihoods.GaussianLikelihood()
            super().__init__(randn(12, 2), randn(12, seed=1), likelihood)
            self.mean, self.kernel = (
                gpytorch.means.ConstantMean(),
                gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()),
            )

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    def predict(model: Any, x: torch.Tensor) -> Any:
        with gpytorch.settings.fast_pred_var():
            found = model(x)
        return found.mean, found.variance

    return Model(Process(), [(randn(n, 2, seed=2),) for n in (4, 9, 1)], ({0: "n"},), call=predict)


PROCESSES = models("gpytorch", {"ExactGP": _regression})


def _distance(name: str, **options: Any) -> Model:
    calls = [(randn(n, 8), randn(m, 8, seed=1)) for n, m in ((3, 4), (7, 2), (1, 5))]
    return Model(make(f"pytorch_metric_learning.distances.{name}", **options), calls, ({0: "n"}, {0: "m"}))


def _loss(name: str, **options: Any) -> Model:
    calls = [(randn(n, 8), torch.arange(n) // 2 % 3) for n in (8, 12, 6)]
    return Model(make(f"pytorch_metric_learning.losses.{name}", **options), calls, (_ROWS, _ROWS))


_CLASSES = {"num_classes": 3, "embedding_size": 8}

METRIC_LEARNING = models(
    "pytorch-metric-learning",
    {
        "ArcFaceLoss": partial(_loss, "ArcFaceLoss", **_CLASSES),
        "CircleLoss": partial(_loss, "CircleLoss"),
        "ContrastiveLoss": partial(_loss, "ContrastiveLoss"),
        "DotProductSimilarity": partial(_distance, "DotProductSimilarity"),
        "LpDistance": partial(_distance, "LpDistance", p=2),
        "MultiSimilarityLoss": partial(_loss, "MultiSimilarityLoss"),
        "NormalizedSoftmaxLoss": partial(_loss, "NormalizedSoftmaxLoss", **_CLASSES),
        "ProxyAnchorLoss": partial(_loss, "ProxyAnchorLoss", **_CLASSES),
        "SNRDistance": partial(_distance, "SNRDistance"),
        "SupConLoss": partial(_loss, "SupConLoss"),
        "TripletMarginLoss": partial(_loss, "TripletMarginLoss"),
    },
)


def _network() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    )


def _attribution(name: str, **options: Any) -> Model:
    def attribute(network: nn.Module, x: torch.Tensor) -> Any:
        with torch.enable_grad():
            return make(f"captum.attr.{name}", network).attribute(x, target=1, **options)

    calls = [(pictures(*size),) for size in ((1, 16, 16), (2, 20, 24), (3, 16, 18))]
    return Model(_network(), calls, (HW,), call=attribute)


CAPTUM = models(
    "captum",
    {
        "Deconvolution": partial(_attribution, "Deconvolution"),
        "DeepLift": partial(_attribution, "DeepLift"),
        "GuidedBackprop": partial(_attribution, "GuidedBackprop"),
        "Occlusion": partial(_attribution, "Occlusion", sliding_window_shapes=(3, 8, 8), strides=(3, 8, 8)),
        "Saliency": partial(_attribution, "Saliency"),
    },
)


def _lines() -> Calls:
    return [(randn(2, 16),), (randn(1, 24),), (randn(3, 9),)]


def _of_lines(path: str) -> Model:
    function = partial(make, path)
    return Model(nn.Identity(), _lines(), ({0: "batch", 1: "n"},), call=lambda _, x: function(x))


DCT = models("torch-dct", {name: partial(_of_lines, f"torch_dct.{name}") for name in ("dct", "idct", "idct1")})


def _wavelet(name: str, calls: Calls, dims: Any, **options: Any) -> Model:
    function = getattr(import_module("ptwt"), name)
    return Model(nn.Identity(), calls, (dims,), call=lambda _, x: function(x, "db2", **options))


_PLANES: Calls = [(randn(2, 32, 32),), (randn(1, 48, 40),), (randn(3, 41, 37),)]

WAVELETS = models(
    "ptwt",
    {
        "fswavedec2": partial(_wavelet, "fswavedec2", _PLANES, {0: "batch", 1: "h", 2: "w"}, level=2),
        "wavedec2": partial(_wavelet, "wavedec2", _PLANES, {0: "batch", 1: "h", 2: "w"}, level=2),
        "wavedec_zero": partial(
            _wavelet, "wavedec", [(randn(b, n),) for b, n in ((2, 32), (1, 64), (3, 41))], {0: "batch", 1: "n"}, level=2, mode="zero"
        ),
    },
)  # fmt: skip


def _policy(path: str, continuous: bool, call: Callable[..., Any] | None = None, pictures_: bool = False) -> Model:
    """A policy of Stable-Baselines3, with numbers or pictures as observations."""
    spaces = import_module("gymnasium.spaces")
    seen = spaces.Box(0, 255, (3, 36, 36), "uint8") if pictures_ else spaces.Box(-1, 1, (8,))
    actions = spaces.Box(-1, 1, (2,)) if continuous else spaces.Discrete(4)
    policy = make(f"stable_baselines3.{path}", seen, actions, lambda _: 1e-3)
    observations = [randint(256, n, 3, 36, 36).to(torch.uint8) if pictures_ else rand(n, 8) for n in (2, 1, 5)]
    return Model(
        policy,
        [(each,) for each in observations],
        (_ROWS,),
        call=call or (lambda model, x: model(x, deterministic=True)),
    )


POLICIES = models(
    "stable-baselines3",
    {
        "continuous": partial(_policy, "common.policies.ActorCriticPolicy", True),
        "pictures": partial(_policy, "common.policies.ActorCriticCnnPolicy", False, pictures_=True),
        "dqn": partial(_policy, "dqn.policies.DQNPolicy", False),
        "sac": partial(_policy, "sac.policies.SACPolicy", True),
        "td3": partial(_policy, "td3.policies.TD3Policy", True, lambda model, x: model(x)),
    },
)

_PAIRS: Calls = [(randn(n, 8), randn(n, 8, seed=1)) for n in (6, 9, 3)]


def _pair_loss(name: str) -> Model:
    return Model(make(f"lightly.loss.{name}"), _PAIRS, (_ROWS, _ROWS))


def _head(name: str, **options: Any) -> Model:
    return Model(make(f"lightly.models.modules.{name}", **options), [(randn(n, 16),) for n in (4, 1, 9)], (_ROWS,))


LIGHTLY = models(
    "lightly",
    {
        **{
            name: partial(_pair_loss, name)
            for name in ("BarlowTwinsLoss", "DCLLoss", "NTXentLoss", "NegativeCosineSimilarity", "VICRegLoss")
        },
        "DINOProjectionHead": partial(
            _head, "DINOProjectionHead", input_dim=16, hidden_dim=16, bottleneck_dim=8, output_dim=32
        ),
        "SimCLRProjectionHead": partial(_head, "SimCLRProjectionHead", input_dim=16, hidden_dim=16, output_dim=8),
        "SwaVPrototypes": partial(_head, "SwaVPrototypes", input_dim=16, n_prototypes=12),
    },
)


def _perceptron(name: str, *dims: int, condition: int = 0, **options: Any) -> Model:
    calls = [(randn(n, 8), *([randn(n, condition, seed=1)] if condition else [])) for n in (4, 1, 9)]
    return Model(make(f"x_mlps_pytorch.{name}", *dims, **options), calls, (_ROWS,) * len(calls[0]))


PERCEPTRONS = models(
    "x-mlps-pytorch",
    {
        "Feedforwards": partial(_perceptron, "ff.Feedforwards", 8, 2),
        "FiLMableMLP": partial(_perceptron, "filmable_mlp.FiLMableMLP", 8, 16, 4, condition=3, cond_dim=3),
        "GroupedMLP": partial(_perceptron, "grouped_mlp.GroupedMLP", 8, 16, 4, groups=2),
        "nFeedforwards": partial(_perceptron, "nff.nFeedforwards", 8, 2),
        "ResidualNormedMLP": partial(_perceptron, "residual_normed_mlp.ResidualNormedMLP", 8, 4, residual_every=2),
    },
)


def _embeddings(name: str, **options: Any) -> Model:
    return Model(make(f"rtdl_num_embeddings.{name}", **options), [(randn(n, 4),) for n in (3, 1, 8)], (_ROWS,))


EMBEDDINGS = models(
    "rtdl-num-embeddings",
    {
        "LinearEmbeddings": partial(_embeddings, "LinearEmbeddings", n_features=4, d_embedding=8),
        "PeriodicEmbeddings": partial(_embeddings, "PeriodicEmbeddings", n_features=4, d_embedding=8, lite=False),
        "PiecewiseLinearEmbeddings": lambda: _embeddings(
            "PiecewiseLinearEmbeddings",
            bins=[torch.linspace(-2, 2, 5)] * 4,
            d_embedding=8,
            activation=False,
            version="B",
        ),
        "PiecewiseLinearEncoding": lambda: _embeddings("PiecewiseLinearEncoding", bins=[torch.linspace(-2, 2, 5)] * 4),
    },
)


def _points(name: str, *arguments: Any) -> Model:
    """A layer of geometric tensors."""
    o3 = import_module("e3nn.o3")
    layer = getattr(o3, name)(*arguments)
    width = layer.irreps_in1.dim if hasattr(layer, "irreps_in1") else layer.irreps_in.dim
    inputs = (width, layer.irreps_in2.dim) if hasattr(layer, "irreps_in2") else (width,)
    return Model(layer, [tuple(randn(n, each) for each in inputs) for n in (4, 9, 1)], ({0: "n"},) * len(inputs))


GEOMETRY = models(
    "e3nn",
    {
        "ElementwiseTensorProduct": partial(_points, "ElementwiseTensorProduct", "4x0e+2x1o", "4x0e+2x1o"),
        "FullTensorProduct": partial(_points, "FullTensorProduct", "2x0e+1x1o", "1x0e+1x1o"),
        "Linear": partial(_points, "Linear", "4x0e+3x1o", "2x0e+2x1o"),
        "Norm": partial(_points, "Norm", "4x0e+3x1o+2x2e"),
    },
)
