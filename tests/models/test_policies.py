"""Policies of reinforcement learning, exported by the recipe in the documentation of stable-baselines3.

They create torch distributions in ``forward``, whose argument validation branches on tensor values.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal

import fxonnx

Actor = Callable[["Policy", Tensor, bool], tuple[Tensor, Tensor]]


def normal(policy: Policy, latent: Tensor, deterministic: bool) -> tuple[Tensor, Tensor]:
    distribution = Normal(latent, torch.ones_like(latent) * policy.log_std.exp())
    actions = distribution.mean if deterministic else distribution.rsample()
    return actions, distribution.log_prob(actions).sum(dim=1)


def independent(policy: Policy, latent: Tensor, deterministic: bool) -> tuple[Tensor, Tensor]:
    distribution = Independent(Normal(latent, policy.log_std.exp().expand_as(latent)), 1)
    actions = distribution.mean if deterministic else distribution.rsample()
    return actions, distribution.log_prob(actions)


def squashed(policy: Policy, latent: Tensor, deterministic: bool) -> tuple[Tensor, Tensor]:
    distribution = Normal(latent, policy.log_std.exp())
    actions = distribution.mean if deterministic else distribution.rsample()
    squashed_actions = torch.tanh(actions)
    correction = torch.log(1 - squashed_actions**2 + 1e-6).sum(dim=1)
    return squashed_actions, distribution.log_prob(actions).sum(dim=1) - correction


def categorical(policy: Policy, latent: Tensor, deterministic: bool) -> tuple[Tensor, Tensor]:
    distribution = Categorical(logits=latent)
    actions = torch.argmax(distribution.probs, dim=1) if deterministic else distribution.sample()
    return actions, distribution.log_prob(actions)


def multi_categorical(policy: Policy, latent: Tensor, deterministic: bool) -> tuple[Tensor, Tensor]:
    parts = [Categorical(logits=part) for part in torch.split(latent, [2, 4], dim=1)]
    actions = torch.stack([torch.argmax(part.probs, dim=1) for part in parts], dim=1).reshape((-1, 2))
    chosen = zip(parts, torch.unbind(actions, dim=1), strict=True)
    return actions, torch.stack([part.log_prob(action) for part, action in chosen], dim=1).sum(dim=1)


def bernoulli(policy: Policy, latent: Tensor, deterministic: bool) -> tuple[Tensor, Tensor]:
    distribution = Bernoulli(logits=latent)
    actions = torch.round(distribution.probs)
    return actions, distribution.log_prob(actions).sum(dim=1)


def clamped(policy: Policy, latent: Tensor, deterministic: bool) -> tuple[Tensor, Tensor]:
    """The actor of SAC, which bounds the deviation."""
    distribution = Normal(latent, torch.ones_like(latent) * torch.clamp(policy.log_std, -20, 2).exp())
    return torch.tanh(distribution.mean if deterministic else distribution.rsample()), distribution.stddev


def greedy(policy: Policy, latent: Tensor, deterministic: bool) -> tuple[Tensor, Tensor]:
    """The network of DQN, which takes the action of the greatest value."""
    return latent.argmax(dim=1).reshape(-1), latent


class Policy(nn.Module):
    """An actor and a critic with a shared trunk, like ActorCriticPolicy."""

    def __init__(self, act: Actor) -> None:
        super().__init__()
        self.act = act
        self.trunk = nn.Sequential(nn.Linear(3, 8), nn.Tanh())
        self.action_net = nn.Linear(8, 6)
        self.value_net = nn.Linear(8, 1)
        self.log_std = nn.Parameter(torch.full((6,), -0.5))

    def forward(self, observation: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        latent = self.trunk(observation.float())
        actions, log_prob = self.act(self, self.action_net(latent), deterministic)
        return actions, self.value_net(latent), log_prob


class OnnxablePolicy(nn.Module):
    """The wrapper of the recipe."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observation: Tensor) -> Any:
        return self.policy(observation, deterministic=True)


ACTORS: list[Actor] = [normal, independent, squashed, categorical, multi_categorical, bernoulli, clamped, greedy]


@pytest.mark.parametrize("shapes", [None, ({0: "batch"},)], ids=["static", "dynamic"])
@pytest.mark.parametrize("act", ACTORS, ids=lambda act: act.__name__)
def test_recipe_of_the_documentation(act: Actor, shapes: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    policy = OnnxablePolicy(Policy(act)).eval()
    file = tmp_path / "policy.onnx"
    with fxonnx.installed():
        torch.onnx.export(
            policy,
            (torch.randn(1, 3),),
            file,
            opset_version=17,
            input_names=["input"],
            dynamic_shapes=shapes,
            dynamo=True,
        )
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for batch in (1,) if shapes is None else (1, 2, 7):
        observation = torch.randn(batch, 3)
        with torch.no_grad():
            expected = policy(observation)
        for actual, wanted in zip(session.run(None, {"input": observation.numpy()}), expected, strict=True):
            np.testing.assert_allclose(actual, wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_argument_validation_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    # TorchDynamo turns the validation off for the whole process in the first compilation of any test.
    monkeypatch.setattr(Distribution, "_validate_args", True)

    def check() -> None:
        assert Distribution._validate_args is True
        with pytest.raises(ValueError, match="to satisfy the constraint"):
            Normal(torch.zeros(1), torch.tensor([-1.0]))

    check()
    fxonnx.export(OnnxablePolicy(Policy(normal)).eval(), (torch.randn(1, 3),))
    check()


@pytest.mark.parametrize("default", [True, False])
def test_user_default_of_validation_is_kept(default: bool) -> None:
    before = Distribution._validate_args
    try:
        Distribution.set_default_validate_args(default)
        fxonnx.export(OnnxablePolicy(Policy(categorical)).eval(), (torch.randn(1, 3),))
        assert Distribution._validate_args is default
    finally:
        Distribution.set_default_validate_args(before)
