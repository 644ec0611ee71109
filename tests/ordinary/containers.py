"""Inputs and outputs in dicts, lists, tuples and objects; loops over layers."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from .harness import T, ids, mask, ordinary

X = T("batch", 5)


@ordinary(X)
def dict_output(x):
    return {"logits": x + 1, "features": x.sum(1), "nested": {"deep": x * 2}}


@ordinary(X)
def tuple_and_list_output(x):
    return x, (x + 1, [x + 2, (x + 3,)])


@ordinary(X)
def none_among_outputs(x):
    return x * 2, None, {"loss": None, "logits": x + 1}


@ordinary(X)
def same_output_twice(x):
    y = x * 2
    return y, y, x


@ordinary(X)
def input_as_output(x):
    return x


@ordinary(X)
def weight_as_output(self, x):
    return self.scale, x + 1, self.offset, self.table.t()


@ordinary(X)
def constant_as_output(x):
    return torch.arange(3), x * 1, torch.tensor([1.0, 2.0]), torch.zeros(2, dtype=torch.bool)


@ordinary(X)
def views_as_output(x):
    y = x * 2
    return y, y[0], y.t(), y[:, :2], y.view(-1)


@ordinary(X)
def single_element_tuple(x):
    return (x.mean(),)


Detections = namedtuple("Detections", ["boxes", "scores", "labels"])


@ordinary(X)
def namedtuple_output(x):
    return Detections(x.view(-1, 1).expand(-1, 4), x.sigmoid().flatten(), x.argmax(1))


@ordinary(X)
def ordered_dict_output(x):
    features = OrderedDict()
    for name, factor in (("p2", 1), ("p3", 2), ("p4", 3)):
        features[name] = x * factor
    return features


@dataclass
class Output:
    """Like the outputs of transformers."""

    logits: torch.Tensor
    hidden: torch.Tensor | None = None
    states: tuple[torch.Tensor, ...] = ()


@ordinary(X)
def dataclass_output(x):
    return Output(logits=x + 1, states=(x, x * 2))


@ordinary({"ids": ids("batch", "time"), "mask": mask("batch", "time")})
def dict_input(batch):
    return (batch["ids"] * batch["mask"]).sum(1)


@ordinary([X, T("batch", 3), X])
def list_input(parts):
    return torch.cat(parts, 1)


@ordinary((X, (X, X)), X)
def nested_tuple_input(pair, last):
    first, (second, third) = pair
    return first + second * third - last


@ordinary({"image": T("batch", 3, "height", "width"), "meta": [T("batch"), {"scale": T("batch", 1)}]})
def deep_input(sample):
    return sample["image"].mean((1, 2, 3)) * sample["meta"][0], sample["meta"][1]["scale"] + 1


@ordinary(X, kwargs={"scale": T("batch", 1), "bias": T(5)})
def keyword_inputs(x, bias=None, scale=None):
    return x * scale + bias


@ordinary(X)
def optional_input_left_out(x, weights=None):
    return x if weights is None else x * weights


@ordinary(X, None, X)
def none_in_the_middle(x, keep, y):
    return x - y if keep is None else x * keep


@ordinary(X, 3, 0.5, True, "sum")
def numbers_and_words_as_inputs(x, repeats, factor, doubled, how):
    y = x.repeat(1, repeats) * factor
    y = y * 2 if doubled else y
    return y.sum(1) if how == "sum" else y


@ordinary(X, X, X)
def any_number_of_inputs(*parts):
    return torch.stack(parts).mean(0)


@ordinary(X, T("batch", 3))
def unused_input(x, unused):
    return x + 1


@ordinary(T("batch"), T(3), T())
def small_ranks(x, row, number):
    return x * number, x[:, None] * row, number + 1


@ordinary(T("batch", 16))
class ModuleLists(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.Identity(), nn.LayerNorm(16)])

    def forward(self, x):
        states = []
        for k, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            x = norm(F.relu(layer(x))) + (x if k else 0)
            states.append(x)
        return x, states


@ordinary(T("batch", 16))
class ModuleDicts(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict(
            {"cls": nn.Linear(16, 3), "box": nn.Linear(16, 4), "a.b".replace(".", "_"): nn.Tanh()}
        )

    def forward(self, x):
        return {name: head(x) for name, head in self.heads.items()}


@ordinary(T("batch", 16))
class ParameterLists(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(16, 16)) for _ in range(2)])
        self.biases = nn.ParameterDict({"first": nn.Parameter(torch.ones(16)), "second": nn.Parameter(torch.zeros(16))})

    def forward(self, x):
        for weight, bias in zip(self.weights, self.biases.values(), strict=True):
            x = torch.tanh(x @ weight + bias * 2)
        return x


@ordinary(T("batch", 16))
class SequentialWithIndices(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(OrderedDict(fc=nn.Linear(16, 32), act=nn.ReLU(), out=nn.Linear(32, 16)))

    def forward(self, x):
        return self.body(x), self.body[:2](x), self.body.fc.weight.norm(), self.body[-1](self.body[0](x))


@ordinary(T("batch", 16))
class SharedLayer(nn.Module):
    """One layer, called several times."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        for _ in range(3):
            x = self.norm(x + self.layer(x).relu())
        return x


@ordinary(T("batch", 16))
class NestedModules(nn.Module):
    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layer = nn.Linear(width, width)
            self.gain = nn.Parameter(torch.ones(()))

        def forward(self, x, *, flip=False):
            y = self.layer(x) * self.gain
            return {"y": y.flip(-1) if flip else y, "x": x}

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([self.Block(16) for _ in range(2)])

    def forward(self, x):
        first = self.blocks[0](x, flip=True)
        return self.blocks[1](first["y"])["y"] + first["x"]


@ordinary(T("batch", 16))
class DenseConnections(nn.Module):
    """Outputs collected in a list and concatenated."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16 + 8 * k, 8) for k in range(3)])

    def forward(self, x):
        features = [x]
        for layer in self.layers:
            features.append(F.relu(layer(torch.cat(features, 1))))
        return torch.cat(features[1:], -1)


@ordinary(T("batch", 16))
class SettingsOfTheModel(nn.Module):
    """Branches on attributes."""

    def __init__(self):
        super().__init__()
        self.config = {"act": "gelu", "residual": True, "widths": [32, 16]}
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip([16, 32], self.config["widths"], strict=True)])

    def forward(self, x):
        y = x
        for layer in self.layers:
            y = getattr(F, self.config["act"])(layer(y))
        return x + y if self.config["residual"] and not self.training else y


@ordinary(T("batch", 16))
class HookedModule(nn.Module):
    """A forward hook that keeps an intermediate result."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.kept = {}
        self.layer.register_forward_hook(lambda module, args, output: output * 2)

    def forward(self, x):
        return self.layer(x)


@ordinary(T("batch", 16))
class PropertiesAndMethods(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    @property
    def width(self):
        return self.layer.out_features

    @staticmethod
    def activate(x, slope=0.1):
        return F.leaky_relu(x, slope)

    def forward(self, x):
        return self.activate(self.layer(x)) / self.width**0.5


@ordinary(T("batch", 16))
class MixtureOfExperts(nn.Module):
    """A dense mixture of experts: all experts run, gates weight their outputs."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(16, 8) for _ in range(4)])
        self.gate = nn.Linear(16, 4)

    def forward(self, x):
        weights, chosen = F.softmax(self.gate(x), -1).topk(2)
        gates = torch.zeros(x.shape[0], 4).scatter(1, chosen, weights)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return (gates.unsqueeze(-1) * outputs).sum(1)


@ordinary(T("batch", 16))
class FrozenBackbone(nn.Module):
    """``torch.no_grad`` as context manager and as decorator."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(16, 16).requires_grad_(False)
        self.head = nn.Linear(16, 2)

    @torch.no_grad()
    def features(self, x):
        return self.backbone(x)

    def forward(self, x):
        with torch.no_grad():
            f = self.features(x)
        with torch.autocast("cpu", enabled=False):
            return self.head(f.detach())
