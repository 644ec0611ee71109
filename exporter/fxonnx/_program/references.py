"""What a verification compares ONNX Runtime with: the user's model, or the captured program where no model is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import onnx_ir as ir
import torch

from fxonnx_translations._builder.initializers import has_content
from fxonnx_translations._builder.sub_byte import as_codes, copy_of
from fxonnx_translations._torch_compat import FakeTensor, pytree

from .._callers_autocast import in_autocast
from .._capture.eager_runs import (
    call_with_weights,
    copies_of_inputs,
    has_same_bits,
    preserved_state,
    run_uncompiled,
    without_global_hooks,
)
from .._capture.function_transforms import recorded_function_calls
from .._capture.inputs.pytree_objects import flatten_objects
from .._comparison import REFERENCE_TEXTS, ReferenceName
from .._export_context import outside_of_export
from .._extensions import add_on
from .._inner_tensors import rewrapped, unwrapped
from .._interrupts import interruptible
from .._written_parameters import written_parameters
from ..errors import ArgumentError, SaveError, kind_of
from . import saving
from .accuracy_level import full_float32_products, multiplies_stored_weights
from .call_binding import BoundCall, bind_call
from .interface import GraphInterface
from .quantization import ProgramQuantization
from .record import ExportRecord
from .stateful import Calls, final_states, read_states, run_in_a_row
from .weights import WeightMap

__all__ = [
    "Model",
    "Reference",
    "VerifiableProgram",
    "captured_reference",
    "copies",
    "dequantized",
    "reference_of",
    "runs_in_float",
]

Model = torch.nn.Module | torch.export.ExportedProgram | Callable[..., Any]
"""A model to compare with; functions may be scripted."""


class VerifiableProgram(Protocol):
    """The members of ``ONNXProgram`` that verification reads."""

    @property
    def model(self) -> ir.Model:
        """The ONNX model."""

    @property
    def exported_program(self) -> torch.export.ExportedProgram:
        """The captured program."""

    @property
    def record(self) -> ExportRecord:
        """The record of the export."""

    @property
    def interface(self) -> GraphInterface:
        """The graph inputs and outputs."""

    @property
    def quantization(self) -> ProgramQuantization:
        """The program beside the model before the quantization."""

    @property
    def weights(self) -> WeightMap:
        """The mapping between FQNs of the state_dict and initializers."""

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model in ONNX Runtime."""


@dataclass(frozen=True)
class Reference:
    """The computation that ONNX Runtime is compared with.

    Attributes:
        name: Its kind, as in ``OutputComparison.reference``.
        program: The program that is verified.
        model: The function that is called; None for a captured program.
        is_given: Whether the caller passed the model to the verification, rather than to the export.
    """

    name: ReferenceName
    program: VerifiableProgram
    model: Callable[..., Any] | None = None
    is_given: bool = False

    @property
    def text(self) -> str:
        """The reference in messages: "eager torch", "the captured program"."""
        return REFERENCE_TEXTS[self.name]

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """The parameters with which the model computes, by name; none of a captured program or of quantized weights."""
        if not isinstance(self.model, torch.nn.Module) or self.program.record.options.quantize is not None:
            return {}
        applied = {} if self.is_given else self.program.interface.applied_weights
        own = {name: applied.get(name, value) for name, value in self.model.named_parameters(remove_duplicate=False)}
        return {name: value for name, value in own.items() if type(value) in (torch.Tensor, torch.nn.Parameter)}

    def run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], weights: Mapping[str, torch.Tensor] | None = None
    ) -> list[Any]:
        """Return the outputs and the final states for bound arguments, which are not modified.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.
            weights: Weights to compute with instead of the model's, by name; not for captured programs.
        """
        return self.run_in_a_row([(args, kwargs)], weights)[0]

    def run_in_a_row(self, calls: Calls, weights: Mapping[str, torch.Tensor] | None = None) -> list[list[Any]]:
        """Return the results of calls that start from the state that the one before left, up to one that fails.

        Args:
            calls: Bound arguments, which are not modified.
            weights: As for ``run``.
        """
        if self.model is None:
            return _run_captured_program(self.program, calls)
        replaced = {**_replaced_weights(self.program, self.model, is_given=self.is_given), **(weights or {})}
        return run_uncompiled(partial(_run_model, self.program, self.model, calls, replaced))

    def obstacle(self, call: BoundCall) -> str:
        """Why the program and the reference cannot run: tensors that have no values; "" if they can."""
        try:
            saving.check_values(value.const_value for value in self.program.model.graph.initializers.values())
        except SaveError as error:
            return error.message
        if not all(has_content(leaf) for leaf in call.inputs if isinstance(leaf, torch.Tensor)):
            return "the inputs have no values: they are on the meta device or fake tensors"
        if not isinstance(self.model, torch.nn.Module):
            return ""
        replaced = {} if self.is_given else self.program.interface.applied_weights
        for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
            if name not in replaced and (tensor.is_meta or isinstance(tensor, FakeTensor)):
                return f"{name!r} has no values in the model: it is on the meta device or a fake tensor"
        return ""

    def changed_weights(self) -> list[str]:
        """Names of the weights of the model whose values are not the program's."""
        applied = self.program.interface.applied_weights
        if not isinstance(self.model, torch.nn.Module) or (applied and not self.is_given):
            return []
        exported: dict[str, Any] = {**self.program.exported_program.state_dict, **applied}
        own = unwrapped(dict((*self.model.named_parameters(), *self.model.named_buffers())))
        return [name for name, value in own.items() if name in exported and not _is_equal(value, exported[name])]


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one is other or not (has_content(one) and has_content(other)) or one.data_ptr() == other.data_ptr():
        return True
    return has_same_bits(as_codes(one.detach()), as_codes(other.detach()))


def reference_of(program: VerifiableProgram, model: Model | None = None) -> Reference:
    """Choose the reference: the given model, the one that was exported, or else the captured program.

    Raises:
        ArgumentError: If the given model cannot be called, or has other weights than those that were quantized.
    """
    if model is None:
        exported = program.record.capture.request.model
        if isinstance(exported, torch.export.ExportedProgram):
            return Reference("exported program", program)
        return captured_reference(program) if exported is None else Reference("model", program, exported)
    if isinstance(model, torch.export.ExportedProgram):
        return Reference("exported program", program, model.module(), is_given=True)
    if not callable(model) or isinstance(model, type):
        given = model.__name__ if isinstance(model, type) else kind_of(model)
        raise ArgumentError("model", f"expected a module or a function, got {given}", hint="pass the exported model")
    reference = Reference("model", program, model, is_given=True)
    if program.record.options.quantize is not None:
        changed = reference.changed_weights()
        if changed:
            raise ArgumentError(
                "model",
                f"{changed[0]!r} differs from the weight that was quantized, which the comparison replaces by its "
                "dequantized values",
                hint="pass the model that was exported, or export this one",
            )
    return reference


def captured_reference(program: VerifiableProgram) -> Reference:
    """The captured program, run in PyTorch."""
    return Reference("captured program", program)


def dequantized(program: VerifiableProgram) -> Any:
    """The values of the quantized weights of a program; None without quantized weights."""
    if program.record.options.quantize is None or program.quantization.float_model is not None:
        return None
    return add_on("quantization").dequantized_weights(program.model, program.weights)


def runs_in_float(program: VerifiableProgram) -> bool:
    """Whether ONNX Runtime would round activations before it multiplies them by quantized weights."""
    return program.record.options.quantize is not None or multiplies_stored_weights(program.model)


def _run_captured_program(program: VerifiableProgram, calls: Calls) -> list[list[Any]]:
    module = _isolated_module(program.exported_program)
    quantized = dequantized(program)
    if quantized is not None:
        quantized.replace_tables(module)
    weights = {name: copy_of(buffer) for name, buffer in module.named_buffers()}
    # The program writes to buffers.
    applied = {
        name: copy_of(value) if name in weights else value for name, value in program.interface.applied_weights.items()
    }
    weights |= {**applied, **(quantized.products if quantized is not None else {})}

    def call(args: Any, kwargs: Any) -> list[Any]:
        args, kwargs = copies_of_inputs((tuple(args), dict(kwargs)))
        result = torch.func.functional_call(module, weights, args, kwargs, tie_weights=False)
        leaves: list[Any] = copies(_output_leaves(program, result))
        return leaves + _final_states(program, module, weights, args, kwargs)

    functions = recorded_function_calls(program.record.capture.functions)
    with torch.no_grad(), functions, without_global_hooks(), full_float32_products():
        return run_in_a_row(calls, call)


def _run_model(
    program: VerifiableProgram, model: Callable[..., Any], calls: Calls, replaced: dict[str, torch.Tensor]
) -> list[list[Any]]:
    """Run the user's model in the training and grad mode of the export, and restore its state."""
    capture = program.record.capture
    written = written_parameters(program.exported_program) | replaced.keys()
    grad_mode = torch.is_grad_enabled() if capture.grad_mode is None else capture.grad_mode

    def call(args: Any, kwargs: Any) -> list[Any]:
        args, kwargs = copies_of_inputs((args, kwargs))
        with interruptible():
            result = call_with_weights(model, replaced, capture.inputs.for_model((args, kwargs)))
        # Results may be buffers, whose values are restored.
        leaves: list[Any] = copies(_output_leaves(program, flatten_objects(result)))
        values: dict[str, Any] = {}
        if isinstance(model, torch.nn.Module):
            values = dict(model.named_parameters(remove_duplicate=False))
            values |= {**dict(model.named_buffers(remove_duplicate=False)), **replaced}
        return leaves + _final_states(program, model, values, args, kwargs)

    with (
        outside_of_export(),
        preserved_state(model, capture.training, written),
        torch.set_grad_enabled(grad_mode),
        in_autocast(capture.autocast),
        full_float32_products(),
    ):
        return run_in_a_row(calls, call)


def _replaced_weights(program: VerifiableProgram, model: Any, *, is_given: bool) -> dict[str, torch.Tensor]:
    """Weights with which the program computes instead of the model's: applied and dequantized ones."""
    if not isinstance(model, torch.nn.Module):
        return {}
    quantized = dequantized(program)
    applied = {} if is_given else {name: copy_of(value) for name, value in program.interface.applied_weights.items()}
    return {**rewrapped(model, applied), **(quantized.for_model(model) if quantized is not None else {})}


def _output_leaves(program: VerifiableProgram, result: Any) -> list[Any]:
    structure = program.exported_program.call_spec.out_spec
    # The captured program returns the stacked tensor of a list of dynamic length.
    leaves = structure.flatten_up_to(result) if program.record.capture.output_lists else pytree.tree_leaves(result)
    return [leaf for leaf in leaves if not isinstance(leaf, str | None)]


def _final_states(program: VerifiableProgram, module: Any, weights: Any, args: Any, kwargs: Any) -> list[Any]:
    if not read_states(program.model):
        return []
    record = program.record
    call = bind_call(program.exported_program, args, kwargs, record.forward, record.capture.inputs.frozen)
    states: list[Any] = copies(final_states(program.model, module, weights, call.inputs))
    return states


def copies(tree: Any) -> Any:
    """Copies of the tensors in a pytree."""
    return pytree.tree_map_only(torch.Tensor, copy_of, tree)


def _isolated_module(exported_program: torch.export.ExportedProgram) -> torch.nn.Module:
    """Create a module of the program with copies of its buffers, which ``module()`` shares with the user's model."""
    module = exported_program.module()
    for owner in module.modules():
        for name, buffer in owner.named_buffers(recurse=False):
            setattr(owner, name, copy_of(buffer))
        for name, value in list(vars(owner).items()):
            if isinstance(value, torch.Tensor):
                setattr(owner, name, copy_of(value))
    return module
