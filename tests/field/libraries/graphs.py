"""Graph networks: their layers, aggregations, norms, poolings and models, on batches of three graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ..row import Calls, Model, models, rand, randint, randn

_LIBRARY = "torch-geometric"
_SIZES = ((10, 30), (23, 90), (7, 12))
_NODES, _EDGES = {0: "nodes"}, {0: "edges"}
_GRAPH = (_NODES, {1: "edges"})


def _batch(nodes: int) -> torch.Tensor:
    batch = randint(3, nodes).sort().values
    batch[-1] = 2
    return batch


def _edges(nodes: int, edges: int) -> torch.Tensor:
    source = randint(nodes, edges, seed=nodes)
    return torch.stack([source, (source + 1 + randint(nodes - 1, edges, seed=edges)) % nodes])


def _graphs(*more: Callable[[int, int], torch.Tensor]) -> Calls:
    return [(randn(n, 8), _edges(n, e), *(make(n, e) for make in more)) for n, e in _SIZES]


def _named(name: str, **options: Any) -> Any:
    return getattr(import_module("torch_geometric.nn"), name)(**options)


def _layer(name: str, **options: Any) -> Model:
    """A layer of nodes and edges, alone."""
    return Model(_named(name, **options), _graphs(), _GRAPH)


def _with_features(name: str, **options: Any) -> Model:
    """A layer of nodes and edges that have four features each."""
    return Model(_named(name, **options), _graphs(lambda _, e: rand(e, 4)), (*_GRAPH, _EDGES))


def _relational(name: str, *, features: bool = False, **options: Any) -> Model:
    """A layer with three types of edges."""
    calls = _graphs(lambda _, e: randint(3, e), *([lambda _, e: rand(e, 4)] if features else []))
    return Model(_named(name, num_relations=3, **options), calls, (*_GRAPH, _EDGES, *([_EDGES] if features else [])))


def _spatial(name: str, **options: Any) -> Model:
    """A layer of nodes that have places."""
    calls = [(x, places, edges) for x, edges, places in _graphs(lambda n, _: randn(n, 3, seed=1))]
    return Model(_named(name, **options), calls, (_NODES, _NODES, {1: "edges"}))


def _linear(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Linear(before, 16), nn.ReLU(), nn.Linear(16, after))


_WIDTHS: dict[str, Any] = {"in_channels": 8, "out_channels": 16}
_FEATURES = {**_WIDTHS, "edge_dim": 4}
_SCALED = {"aggregators": ["mean", "min", "max", "std"], "scalers": ["identity", "amplification", "attenuation"]}

LAYERS = models(
    _LIBRARY,
    {
        "AGNNConv": partial(_layer, "AGNNConv"),
        "APPNP": partial(_layer, "APPNP", K=3, alpha=0.1),
        "ARMAConv": partial(_layer, "ARMAConv", **_WIDTHS, num_stacks=2, num_layers=2),
        "CGConv": partial(_with_features, "CGConv", channels=8, dim=4),
        "ChebConv": partial(_layer, "ChebConv", **_WIDTHS, K=3),
        "ClusterGCNConv": partial(_layer, "ClusterGCNConv", **_WIDTHS),
        "EdgeConv": lambda: _layer("EdgeConv", nn=_linear(16, 16)),
        "EGConv": partial(_layer, "EGConv", **_WIDTHS, aggregators=["sum", "mean", "max", "symnorm"], num_heads=2),
        "FAConv": lambda: Model(
            _named("FAConv", channels=8), [(x, x.flip(0), e) for x, e in _graphs()], (_NODES, _NODES, {1: "edges"})
        ),
        "FastRGCNConv": partial(_relational, "FastRGCNConv", **_WIDTHS),
        "FeaStConv": partial(_layer, "FeaStConv", **_WIDTHS, heads=2),
        "FiLMConv": partial(_relational, "FiLMConv", **_WIDTHS),
        "GATConv": partial(_with_features, "GATConv", **_FEATURES, heads=2),
        "GATv2Conv": partial(_with_features, "GATv2Conv", **_FEATURES, heads=2),
        "GCNConv": partial(_layer, "GCNConv", **_WIDTHS),
        "GENConv": partial(_with_features, "GENConv", **_FEATURES, learn_t=True, msg_norm=True),
        "GatedGraphConv": partial(_layer, "GatedGraphConv", out_channels=16, num_layers=3),
        "GeneralConv": partial(
            _with_features, "GeneralConv", **_WIDTHS, in_edge_channels=4, attention=True, heads=2, l2_normalize=True
        ),
        "GINConv": lambda: _layer("GINConv", nn=_linear(8, 16), train_eps=True),
        "GINEConv": lambda: _with_features("GINEConv", nn=_linear(8, 16), edge_dim=4),
        "GMMConv": partial(_with_features, "GMMConv", **_WIDTHS, dim=4, kernel_size=3),
        "GPSConv": lambda: Model(
            _named("GPSConv", channels=8, conv=_named("GINConv", nn=_linear(8, 8)), heads=2),
            _graphs(lambda n, _: _batch(n)),
            (*_GRAPH, _NODES),
        ),
        "GPSConv_performer": lambda: Model(
            _named(
                "GPSConv",
                channels=8,
                conv=_named("GCNConv", in_channels=8, out_channels=8),
                heads=2,
                attn_type="performer",
            ),
            _graphs(lambda n, _: _batch(n)),
            (*_GRAPH, _NODES),
        ),
        "GraphConv": partial(_layer, "GraphConv", **_WIDTHS, aggr="max"),
        "HypergraphConv": partial(_layer, "HypergraphConv", **_WIDTHS),
        "LEConv": partial(_layer, "LEConv", **_WIDTHS),
        "LGConv": partial(_layer, "LGConv"),
        "MFConv": partial(_layer, "MFConv", **_WIDTHS, max_degree=5),
        "MixHopConv": partial(_layer, "MixHopConv", **_WIDTHS),
        "NNConv": lambda: _with_features("NNConv", **_WIDTHS, nn=_linear(4, 128)),
        "PDNConv": partial(_with_features, "PDNConv", **_FEATURES, hidden_channels=8),
        "PNAConv": lambda: _with_features("PNAConv", **_FEATURES, **_SCALED, deg=torch.tensor([0, 2, 5, 9])),
        "PointNetConv": lambda: _spatial("PointNetConv", local_nn=_linear(11, 16)),
        "PointTransformerConv": partial(_spatial, "PointTransformerConv", **_WIDTHS),
        "ResGatedGraphConv": partial(_with_features, "ResGatedGraphConv", **_FEATURES),
        "RGATConv": partial(_relational, "RGATConv", features=True, **_FEATURES),
        "RGCNConv": partial(_relational, "RGCNConv", **_WIDTHS, num_bases=2),
        "SAGEConv": partial(_layer, "SAGEConv", **_WIDTHS, normalize=True, project=True),
        "SAGEConv_median": partial(_layer, "SAGEConv", **_WIDTHS, aggr="median"),
        "SGConv": partial(_layer, "SGConv", **_WIDTHS, K=2),
        "SSGConv": partial(_layer, "SSGConv", **_WIDTHS, alpha=0.1, K=2),
        "SuperGATConv": partial(_layer, "SuperGATConv", **_WIDTHS, heads=2),
        "TAGConv": partial(_layer, "TAGConv", **_WIDTHS),
        "TransformerConv": partial(_with_features, "TransformerConv", **_FEATURES, heads=2, beta=True),
    },
)


def _of_nodes(name: str, **options: Any) -> Model:
    """A function of the nodes of each graph."""
    calls = [(randn(n, 8), _batch(n)) for n, _ in _SIZES]
    return Model(_named(name, **options), calls, (_NODES, _NODES))


AGGREGATIONS = models(
    _LIBRARY,
    {
        "AttentionalAggregation": lambda: _of_nodes("AttentionalAggregation", gate_nn=_linear(8, 1)),
        "DeepSetsAggregation": lambda: _of_nodes(
            "DeepSetsAggregation", local_nn=_linear(8, 16), global_nn=_linear(16, 4)
        ),
        "GRUAggregation": partial(_of_nodes, "GRUAggregation", **_WIDTHS),
        "GraphMultisetTransformer": partial(_of_nodes, "GraphMultisetTransformer", channels=8, k=4, heads=2),
        "LSTMAggregation": partial(_of_nodes, "LSTMAggregation", **_WIDTHS),
        "MedianAggregation": partial(_of_nodes, "MedianAggregation"),
        "MulAggregation": partial(_of_nodes, "MulAggregation"),
        "MultiAggregation": partial(_of_nodes, "MultiAggregation", aggrs=["mean", "std", "softmax", "powermean"]),
        "QuantileAggregation": partial(_of_nodes, "QuantileAggregation", q=[0.25, 0.5, 0.9]),
        "Set2Set": partial(_of_nodes, "Set2Set", in_channels=8, processing_steps=3),
        "SetTransformerAggregation": partial(
            _of_nodes, "SetTransformerAggregation", channels=8, num_seed_points=2, heads=2
        ),
        "SortAggregation": partial(_of_nodes, "SortAggregation", k=3),
        "VariancePreservingAggregation": partial(_of_nodes, "VariancePreservingAggregation"),
    },
)

NORMS = models(
    _LIBRARY,
    {
        "GraphNorm": partial(_of_nodes, "GraphNorm", in_channels=8),
        "GraphSizeNorm": partial(_of_nodes, "GraphSizeNorm"),
        "InstanceNorm": partial(_of_nodes, "InstanceNorm", in_channels=8),
        "LayerNorm": partial(_of_nodes, "LayerNorm", in_channels=8),
        "PairNorm": partial(_of_nodes, "PairNorm"),
    },
)


def _pooling(name: str, **options: Any) -> Model:
    def call(layer: Any, x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> Any:
        found = layer(x, edges, batch=batch)
        return [part for part in found if isinstance(part, torch.Tensor)]

    return Model(_named(name, in_channels=8, **options), _graphs(lambda n, _: _batch(n)), (*_GRAPH, _NODES), call=call)


POOLINGS = models(
    _LIBRARY,
    {
        "TopKPooling": partial(_pooling, "TopKPooling", ratio=0.5),
        "SAGPooling": partial(_pooling, "SAGPooling", ratio=0.5),
        "ASAPooling": partial(_pooling, "ASAPooling", ratio=0.5),
    },
)


def _dense(name: str, **options: Any) -> Model:
    """A layer of graphs with a matrix of neighbors each."""

    def call(batch: int, nodes: int) -> tuple[torch.Tensor, ...]:
        neighbors = (rand(batch, nodes, nodes) > 0.6).float()
        return randn(batch, nodes, 8), neighbors, torch.arange(nodes)[None] < 1 + randint(nodes, batch, 1)

    calls = [call(2, 9), call(1, 14), call(3, 5)]
    both = {0: "batch", 1: "nodes"}
    return Model(_named(name, **options), calls, (both, {**both, 2: "nodes"}, both))


DENSE = models(
    _LIBRARY,
    {
        "DenseGATConv": partial(_dense, "DenseGATConv", **_WIDTHS, heads=2),
        "DenseGCNConv": partial(_dense, "DenseGCNConv", **_WIDTHS),
        "DenseGINConv": lambda: _dense("DenseGINConv", nn=_linear(8, 16)),
        "DenseSAGEConv": partial(_dense, "DenseSAGEConv", **_WIDTHS),
        "DMoNPooling": partial(_dense, "DMoNPooling", channels=[8, 8], k=3),
    },
)

_NETWORK: dict[str, Any] = {**_WIDTHS, "hidden_channels": 16, "num_layers": 2}


NETWORKS = models(
    _LIBRARY,
    {
        "AttentiveFP": lambda: Model(
            _named("AttentiveFP", **_NETWORK, edge_dim=4, num_timesteps=2),
            _graphs(lambda _, e: rand(e, 4), lambda n, _: _batch(n)),
            (*_GRAPH, _EDGES, _NODES),
        ),
        "EdgeCNN": partial(_layer, "EdgeCNN", **_NETWORK),
        "GAT": partial(_layer, "GAT", **_NETWORK, v2=True, heads=2, jk="lstm"),
        "GCN": partial(_layer, "GCN", **_NETWORK, norm="graph_norm", jk="cat"),
        "GIN": partial(_layer, "GIN", **_NETWORK, norm="batch_norm"),
        "GraphSAGE": partial(_layer, "GraphSAGE", **_NETWORK, jk="max"),
        "GraphUNet": partial(_layer, "GraphUNet", **_WIDTHS, hidden_channels=16, depth=2),
        "LightGCN": lambda: Model(
            _named("LightGCN", num_nodes=20, embedding_dim=8, num_layers=2),
            [(_edges(20, e),) for e in (30, 70, 12)],
            ({1: "edges"},),
        ),
        "NeuralFingerprint": lambda: Model(
            _named("NeuralFingerprint", **_NETWORK), _graphs(lambda n, _: _batch(n)), (*_GRAPH, _NODES)
        ),
        "PMLP": partial(_layer, "PMLP", **_NETWORK),
        "PNA": lambda: _layer("PNA", **_NETWORK, **_SCALED, deg=torch.tensor([0, 2, 5, 9])),
        "Polynormer": lambda: Model(
            _named("Polynormer", **_WIDTHS, hidden_channels=16, local_layers=1, global_layers=1),
            _graphs(lambda n, _: _batch(n)),
            (*_GRAPH, _NODES),
        ),
        "SGFormer": lambda: Model(
            _named("SGFormer", **_WIDTHS, hidden_channels=16, trans_num_layers=1, gnn_num_layers=1),
            _graphs(lambda n, _: _batch(n)),
            (*_GRAPH, _NODES),
        ),
    },
)
