"""Generators of random numbers of Python, NumPy and torch, whose state is restored after a capture."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import torch

__all__ = ["GENERATORS", "drawn_numbers_are_constant", "process_generators", "set_state", "state_of"]

GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


def process_generators() -> dict[str, Any]:
    """The generators that all of the process shares, by the name of their module; torch's own is not among them."""
    functions: dict[str, Any] = {"random": random.random, "numpy.random": np.random.get_state}
    return {name: function.__self__ for name, function in functions.items()}


def drawn_numbers_are_constant(generator: Any) -> bool:
    """Whether numbers drawn during a capture become constants: all but torch's, which are traced."""
    return isinstance(generator, GENERATORS) and not isinstance(generator, torch.Generator)


def state_of(generator: Any) -> bytes:
    """The state of a generator, equal for equal states."""
    if isinstance(generator, random.Random):
        return pickle.dumps(generator.getstate())
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state(legacy=False))
    return bytes(generator.get_state().numpy())


def set_state(generator: Any, state: bytes) -> None:
    """Set the state of a generator to one of ``state_of``."""
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(generator, random.Random):
        generator.setstate(pickle.loads(state))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = pickle.loads(state)
    else:
        generator.set_state(pickle.loads(state))
