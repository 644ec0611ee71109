"""Variables besides the attributes of a model that outlive a call, of classes, modules and functions; generators.

Random numbers after ``torch.manual_seed`` in forward are the same in every run: constants.
"""

from __future__ import annotations

import dis
import pickle
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from fxonnx_translations._torch_compat import DisableTorchFunction, OpOverload, no_dispatch, pytree

from ..._context_values import activated, active
from ..._user_files import is_user_file
from ..._warnings import warn_user
from ...errors import CaptureError
from ..constraints.guard_recorder import line_of_node

__all__ = [
    "ABSENT",
    "GENERATORS",
    "ProcessState",
    "draw",
    "draw_at_run_time",
    "drawn_numbers_are_constant",
    "is_data",
    "is_own_module",
    "manual_seed",
    "process_generators",
    "referred",
    "reject_generators",
    "set_state",
    "state_of",
    "unseeded",
]


ABSENT = object()
"""The value of a variable that does not exist."""

_STORE_GLOBAL, _STORE_ATTR = dis.opmap["STORE_GLOBAL"], dis.opmap["STORE_ATTR"]
_CONTAINERS = (dict, list, set, deque)


@dataclass
class ProcessState:
    """The variables that the methods of a model may change, with their values."""

    classes: list[tuple[type, dict[str, Any]]] = field(default_factory=list)
    names: dict[tuple[int, str], tuple[dict[str, Any], Any]] = field(default_factory=dict)
    cells: list[tuple[types.CellType, str, Any]] = field(default_factory=list)
    variables: dict[int, str] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)

    def take(self, model: torch.nn.Module) -> Iterator[Any]:
        """Record the variables."""
        functions: list[tuple[types.FunctionType, type]] = []
        modules = list(model.modules())
        for kind in dict.fromkeys(map(type, modules)):
            for owner in kind.__mro__:
                if not owner.__module__.startswith(("torch.", "builtins")):
                    yield from self._take_class(owner)
            forward: Any = getattr(kind, "forward", None)
            if isinstance(forward, types.FunctionType) and not kind.__module__.startswith("torch."):
                functions.append((forward, kind))
        for module in modules:
            own = [value for value in vars(module).values() if type(value) is types.FunctionType]
            functions += [(value, type(module)) for value in own]
        while functions:
            function, kind = functions.pop()
            # Functions of one decorator have the same code.
            if id(function) not in self._seen:
                self._seen.add(id(function))
                yield from self._take_variables(function, kind, functions)

    def _take_class(self, owner: type) -> Iterator[Any]:
        """Record the variables of a class."""
        if id(owner) in self._seen:
            return
        self._seen.add(id(owner))
        values = {name: value for name, value in vars(owner).items() if is_data(name, value)}
        self.classes.append((owner, values))
        for name, value in values.items():
            if isinstance(value, _CONTAINERS):
                self.variables[id(value)] = f"{owner.__name__}.{name}"
                yield value

    def _take_variables(
        self, function: types.FunctionType, kind: type, functions: list[tuple[types.FunctionType, type]]
    ) -> Iterator[Any]:
        """Record the variables of a function, and add the functions of its module and class that it calls."""
        code, variables = function.__code__, function.__globals__
        # The code of a rewritten function calls its replacement, a constant.
        functions += [(item, kind) for item in code.co_consts if type(item) is types.FunctionType]
        names = _names(code)
        for name, value in referred(names, variables):
            if value is ABSENT:
                functions += [(method, kind) for method in _methods(kind, (name,))]
            elif type(value) is types.FunctionType:
                if value.__module__ == function.__module__ or is_own_module(value.__module__):
                    functions.append((value, kind))
            elif isinstance(value, type):
                if value.__module__ == function.__module__ or is_own_module(value.__module__):
                    functions += [(method, value) for method in _methods(value, names)]
                    yield from self._take_class(value)
            elif type(value) in _CONTAINERS or (
                type(value).__module__ == function.__module__ or is_own_module(type(value).__module__)
            ):
                functions += [(method, type(value)) for method in _methods(type(value), names)]
                self.variables[id(value)] = name
                yield value
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            if isinstance(value, _CONTAINERS):
                self.variables[id(value)] = f"a default value of {function.__name__}"
                yield value
        for name in _stored(code, _STORE_GLOBAL):
            self.names.setdefault((id(variables), name), (variables, variables.get(name, ABSENT)))
        for module in (variables.get(name) for name in names):
            if type(module) is types.ModuleType and is_own_module(module.__name__):
                for name in _stored(code, _STORE_ATTR):
                    self.names.setdefault((id(vars(module)), name), (vars(module), vars(module).get(name, ABSENT)))
        for cell, name in zip(function.__closure__ or (), code.co_freevars, strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # a variable without a value
                continue
            self.cells.append((cell, name, value))
            # Containers of enclosing functions are left alone: they collect what callbacks observe.
            if type(value) is types.FunctionType:
                functions.append((value, kind))

    def changes(self) -> Iterable[tuple[Any, str, Any, Any]]:
        """Owner, name, old and new value of each variable that has changed."""
        for owner, before in self.classes:
            now = {name: value for name, value in vars(owner).items() if name in before or is_data(name, value)}
            for name in {**before, **now}:
                if before.get(name, ABSENT) is not now.get(name, ABSENT):
                    yield owner, name, before.get(name, ABSENT), now.get(name, ABSENT)
        for (_, name), (variables, value) in self.names.items():
            if variables.get(name, ABSENT) is not value:
                yield variables, name, value, variables.get(name, ABSENT)
        for cell, name, value in self.cells:
            if cell.cell_contents is not value:
                yield cell, name, value, cell.cell_contents

    def restore(self) -> None:
        """Restore the values."""
        for owner, name, _, _ in [change for change in self.changes() if isinstance(change[0], type)]:
            before = next(values for known, values in self.classes if known is owner)
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)
        for (_, name), (variables, value) in self.names.items():
            if value is not ABSENT:
                variables[name] = value
            else:
                variables.pop(name, None)
        for cell, _, value in self.cells:
            cell.cell_contents = value


def _names(code: types.CodeType) -> dict[str, None]:
    """The names of globals and attributes in a function, and in the functions that are defined in it."""
    found = dict.fromkeys(code.co_names)
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            found |= _names(item)
    return found


def _stored(code: types.CodeType, opcode: int) -> Iterator[str]:
    """The names that an instruction of a function assigns."""
    if opcode in code.co_code[::2]:
        yield from (step.argval for step in dis.get_instructions(code) if step.opcode == opcode)


def referred(names: Collection[str], variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values of names, in the user's own modules as well, ``ABSENT`` without one."""
    for name in names:
        value = variables.get(name, ABSENT)
        if type(value) is types.ModuleType:
            own = vars(value) if is_own_module(value.__name__) else {}
            yield from ((each, own[each]) for each in names if each in own)
        else:
            yield name, value


def _methods(kind: type, names: Iterable[str]) -> Iterator[types.FunctionType]:
    """The methods of a class that are not torch's."""
    found = (getattr(kind, name, None) for name in names)
    for method in (getattr(each, "__func__", each) for each in found):
        if type(method) is types.FunctionType and not method.__module__.startswith("torch."):
            yield method


def is_own_module(module: str) -> bool:
    """Whether a module is a file of the user, of no installed package."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return isinstance(file, str) and "site-packages" not in file and is_user_file(file)


def is_data(name: str, value: Any) -> bool:
    """Whether a class attribute is data instead of a method or a descriptor."""
    return not (type(value) is types.FunctionType or name[:2] == "__" or callable(value) or hasattr(value, "__get__"))


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


@dataclass
class _Seed:
    """The seed that forward has set, if any.

    Attributes:
        patches: Applies ``draw``. TorchDynamo cannot trace it in the subgraphs of models without a seed.
        generator: The generator of the numbers that follow; None if they are not known.
    """

    patches: Callable[[], AbstractContextManager[None]]
    stack: ExitStack
    generator: torch.Generator | None = None
    is_patched: bool = False


@contextmanager
def unseeded(patches: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Inside the context, random numbers are drawn at run time until forward sets a seed."""
    with ExitStack() as stack, activated(_Seed(patches, stack)):
        yield


def manual_seed(original: Callable[..., torch.Generator], seed: Any) -> torch.Generator:
    """``torch.manual_seed`` in forward: seed the generator of the capture instead of the process'."""
    state = active(_Seed)
    if state is not None:
        is_known = isinstance(seed, int) and not isinstance(seed, bool)
        state.generator = torch.Generator().manual_seed(seed) if is_known else None
        if not state.is_patched:
            state.is_patched = True
            state.stack.enter_context(state.patches())
    return torch.default_generator


def reject_generators(program: ExportedProgram) -> None:
    """Refuse operators that draw from a generator of the model, which an ONNX model cannot do.

    Raises:
        CaptureError: If there are any.
    """
    for node in program.graph.nodes:
        if isinstance(node.target, OpOverload) and node.kwargs.get("generator") is not None:
            line, name = line_of_node(node), node.target._schema.name.removeprefix("aten::")
            raise CaptureError(
                f"forward draws the numbers of {name} from a torch.Generator, and an ONNX model has its own generators"
                + ("" if line is None else f"\n  at: {line}"),
                hint="omit generator=; for numbers that are the same in every call, draw them in __init__ and keep "
                "them with register_buffer",
            )


def draw(original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """``torch.randn`` and similar functions: after a seed, the numbers that torch draws, as a constant."""
    state = active(_Seed)
    generator = None if state is None else state.generator
    if state is None or generator is None or kwargs.get("generator") is not None:
        return original(*args, **kwargs)
    leaves = pytree.tree_leaves((args, kwargs))
    device = torch.device(kwargs.get("device") or "cpu")
    if device.type != "cpu" or any(isinstance(leaf, Tensor | torch.SymInt | torch.SymFloat) for leaf in leaves):
        return draw_at_run_time(original, *args, **kwargs)
    with no_dispatch(), DisableTorchFunction():
        numbers = original(*args, **{**kwargs, "device": device, "generator": generator})
    # Traced as a copy, because forward may write to it.
    return numbers.clone()


def draw_at_run_time(original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Random functions whose numbers are not constants. Numbers after them would be other ones than torch's."""
    state = active(_Seed)
    if state is not None and state.generator is not None and kwargs.get("generator") is None:
        state.generator = None
        warn_user(
            f"forward calls torch.manual_seed, but the numbers of {original.__name__} are not constants, because it "
            "fills a tensor, or its arguments are dynamic or on a device other than the CPU: the model draws other "
            "random numbers than torch, which differ between runs",
        )
    return original(*args, **kwargs)
