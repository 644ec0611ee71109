"""Tables of the patches of torch: one row per target, with the reason for the patch."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.nn import Module

from ... import _interrupts, _turns
from ..._extensions import Extension, active_extensions, all_extensions
from .. import function_transforms
from ..constraints.guard_recorder import (
    COMPARISONS,
    compare_sizes,
    guard_bool,
    guard_or_defer_runtime_assert,
    log_guard,
    maybe_guard_rel,
)
from ..constraints.size_forms import guard_or, sym_node_init
from ..data_dependence import checks, concrete_values
from ..function_transforms import call_region, record_function_call
from ..suspicions import eager_types, handled_errors, process_state
from . import fast_paths, tracing_state, value_calls
from .fast_paths import SPEED_PATCHES
from .functional import FUNCTION_PATCHES, isin, pad_sequence, tensor_split, unbind
from .installed import MissingTarget
from .libraries import LIBRARY_PATCHES
from .patch import (
    DecompositionPatch,
    FunctionPatch,
    KernelPatch,
    Patch,
    PatchKind,
    TorchFunctionPatch,
    ValuePatch,
    applied,
    is_tracing,
)
from .sequences import SEQUENCE_PATCHES
from .shape_kernels import KERNEL_PATCHES
from .size_numbers import INTEGER_PATCHES, SIZE_PATCHES
from .torchvision_detection import DETECTION_PATCHES
from .tracing_state import LOADING_PATCHES, REWRITING_PATCHES, STATE_PATCHES, FilteredWarnings, TracedData

__all__ = [
    "CAPTURE_PATCHES",
    "SEED_PATCHES",
    "TRACING_PATCHES",
    "VALUE_PATCHES",
    "all_patches",
    "capture_patches",
    "missing_targets",
    "tracing_patches",
    "value_patches",
]


class ThreadDefault:
    """Class attribute with a different value in the tracing thread; a value of the instance takes precedence."""

    def __init__(self, here: Any, elsewhere: Any) -> None:
        self._here, self._elsewhere = here, elsewhere

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self._here if is_tracing() else self._elsewhere


TRACING_PATCHES: tuple[Patch, ...] = (
    Patch(
        "torch.fx._symbolic_trace:_new_patcher",
        tracing_state.new_patcher,
        "torch.fx sets a global flag while it traces, and compiled functions raise if other threads call them",
        strict=False,
    ),
    Patch(
        "torch.fx.experimental.symbolic_shapes:ShapeEnv.guard_or_defer_runtime_assert",
        guard_or_defer_runtime_assert,
        "conditions on shortcuts and memory layouts would become runtime assertions of the program",
        PatchKind.SOUND,
    ),
    DecompositionPatch(
        "aten::unbind.int", unbind, "its decomposition does not remove the axis of a part if the size is an expression"
    ),
    DecompositionPatch("aten::isin.Tensor_Tensor", isin, "it compares the numbers of elements"),
    KernelPatch("aten::tensor_split.sections", tensor_split, "it specializes which sections are longer"),
    KernelPatch("aten::pad_sequence", pad_sequence, "it compares the lengths of the sequences", before="2.15"),
    Patch(
        "torch.fx.experimental.symbolic_shapes:_guard_or",
        guard_or,
        "it simplifies expressions even where the example already decides the condition",
    ),
    Patch(
        "torch.fx.experimental.sym_node:SymNode.guard_bool",
        guard_bool,
        "torch does not record the line of user code that evaluates a condition on a size",
    ),
)
"""Applied during every trace: by torch.export, and by make_fx for decompositions."""

CAPTURE_PATCHES: tuple[Patch, ...] = (
    *TRACING_PATCHES,
    *SPEED_PATCHES,
    *STATE_PATCHES,
    Patch(
        "torch.fx.proxy:TracerBase._filter_traceback_frames",
        fast_paths.filter_frames,
        "in the subgraphs of control flow, it only keeps lines of generated code",
        PatchKind.SPEED,
    ),
    *(
        Patch(
            f"torch.fx.experimental.sym_node:SymNode.{name}",
            partial(compare_sizes, relation),
            "torch's symbols are positive, so that it evaluates comparisons with 0 without a guard",
            PatchKind.SOUND,
        )
        for name, relation in COMPARISONS.items()
    ),
    Patch(
        "torch.fx.experimental.symbolic_shapes:ShapeEnv._log_guard",
        log_guard,
        "torch keeps only the range of a guard that narrows the range of a size",
        PatchKind.SOUND,
    ),
    Patch(
        "torch.fx.experimental.symbolic_shapes:ShapeEnv._maybe_guard_rel",
        maybe_guard_rel,
        "torch would simplify symbols by conditions on shortcuts, and drop later checks",
        PatchKind.SOUND,
    ),
    Patch(
        "torch.fx.experimental.sym_node:SymNode.__init__",
        sym_node_init,
        "size expressions of nested paddings and strides grow exponentially with the depth of a model",
        PatchKind.SPEED,
    ),
    *(*KERNEL_PATCHES, *SEQUENCE_PATCHES, *FUNCTION_PATCHES, *SIZE_PATCHES),
    *(*DETECTION_PATCHES, *LIBRARY_PATCHES),
    *(
        Patch(
            f"torch:{name}.__repr__",
            eager_types.text_of_number,
            "the text of a size is an expression in symbols, and not the number that it is in eager torch",
            PatchKind.SOUND,
            strict=False,
        )
        for name in ("SymInt", "SymFloat", "SymBool")
    ),
    *(
        Patch(
            f"torch:Tensor.{name}",
            eager_types.text_of_tensor,
            "the text of a fake tensor does not have the values that it has in eager torch",
            PatchKind.SOUND,
            strict=False,
        )
        for name in ("__repr__", "__format__")
    ),
    Patch(
        "torch.autograd.function:Function.apply",
        record_function_call,
        "torch.export traces into the function, but one with a symbolic must remain a single operator",
        strict=False,
    ),
    Patch(
        "torch._higher_order_ops.invoke_subgraph:invoke_subgraph_placeholder",
        call_region,
        "it compiles the region by TorchDynamo, whose nodes torch.export then records without a trace of the region",
        strict=False,
    ),
    Patch(
        "torch._export.non_strict_utils:_NonStrictTorchFunctionHandler._override",
        value_calls.override_indexing,
        "it reads numbers in tensors, and sequences of them, from memory, which fake tensors do not have",
        strict=False,
    ),
    *(
        Patch(
            f"torch._functorch.{target}",
            replacement,
            "torch.export records operators above functorch, where derivatives are not computed yet",
            strict=False,
        )
        for target, replacement in (
            ("eager_transforms:grad_and_value_impl", function_transforms.derivative),
            ("eager_transforms:_jvp_with_argnums", function_transforms.derivative),
            ("eager_transforms:_vjp_with_argnums", function_transforms.vector_jacobian_product),
            ("apis:vmap_impl", function_transforms.vmap),
        )
    ),
    *(
        Patch(target, function_transforms.gradients, "torch.export loses tensors that gradients need", strict=False)
        for target in ("torch.autograd:grad", "torch:Tensor.backward")
    ),
    Patch(
        "torch.fx._symbolic_trace:Tracer.call_module",
        tracing_state.call_module,
        "a module stays on the stack if its forward raises an error, and an assertion fails if the model handles it",
        strict=False,
    ),
    Patch(
        "torch:compile",
        tracing_state.compile_anew,
        "higher-order operators compile one function each: guards of earlier calls would specialize dynamic dims",
        strict=False,
    ),
    Patch(
        "torch._dynamo.utils:clone_input",
        tracing_state.clone_input,
        "it returns fake tensors as they are: two states of scan that begin with one tensor would be one state",
        PatchKind.SOUND,
    ),
    FunctionPatch(
        "torch:manual_seed",
        process_state.manual_seed,
        "a call in forward would seed the generator of the whole process, including training threads",
        PatchKind.SOUND,
        strict=False,
    ),
    Patch(
        "torch.nn.modules.module:Module._apply",
        tracing_state.convert_module,
        "it swaps parameters that the tracer holds, even if a call in forward converts nothing",
        strict=False,
    ),
    ValuePatch(
        "torch:Tensor.data",
        TracedData,
        "torch.export silently drops writes through tensor.data",
        PatchKind.SOUND,
        strict=False,
    ),
    ValuePatch(
        "torch.distributions.distribution:Distribution._validate_args",
        lambda original: ThreadDefault(False, original),
        "the validation of arguments branches on the values of tensors",
    ),
    ValuePatch(
        "torch._functorch._aot_autograd.frontend_utils:warnings",
        FilteredWarnings,
        "torch warns about the weight lists of RNNs, which are restored after the export",
    ),
    *(
        Patch(
            f"{error}.__init__",
            handled_errors.record_error,
            "the model may handle it and take a fallback",
            PatchKind.SOUND,
            strict=False,
        )
        for error in (
            "torch.fx.experimental.symbolic_shapes:GuardOnDataDependentSymNode",
            "fxonnx.errors:CaptureError",
        )
    ),
    *(
        Patch(
            f"torch:{name}",
            handled_errors.record_raised,
            "the model may handle its error",
            PatchKind.SOUND,
            strict=False,
        )
        for name in ("UntypedStorage.data_ptr", "UntypedStorage.tolist", "SymFloat.__format__", "SymInt.__format__")
    ),
    Patch(
        "torch:Tensor.__reduce_ex__",
        handled_errors.refuse_pickling,
        "the error of pickle is not one of a torch function, and the model may handle it",
        PatchKind.SOUND,
        strict=False,
    ),
    Patch("torch.fx:Interpreter.run_node", _interrupts.run_node, "a safe point for signals", strict=False),
    ValuePatch(
        "torch._export.non_strict_utils:_NonStrictTorchFunctionHandler.__torch_function__",
        handled_errors.record_errors,
        "the model may handle the errors of torch functions that tensors without values and memory raise",
        PatchKind.SOUND,
        strict=False,
    ),
    Patch(
        "torch.fx.experimental.symbolic_shapes:_find_user_code_frame",
        handled_errors.user_code_frame,
        "it would take the function that records errors for code of the model",
        strict=False,
        optional=True,
    ),
)
"""Applied by torch.export; in strict mode without the rows with ``strict=False``: TorchDynamo would trace into them."""

VALUE_PATCHES: tuple[Patch, ...] = (
    Patch(
        "torch._subclasses.fake_tensor:FakeTensorMode.dispatch",
        concrete_values.dispatch,
        "fake tensors have no values, so that Python cannot branch on them",
    ),
    Patch(
        "torch._subclasses.fake_tensor:FakeTensorConverter.from_real_tensor",
        concrete_values.from_real_tensor,
        "torch.export drops the values of parameters and inputs",
    ),
    Patch(
        "torch.fx.experimental.symbolic_shapes:ShapeEnv._log_real_tensor_propagation",
        concrete_values.answer_by_example,
        "torch does not record for which line it evaluates a condition for the example",
        PatchKind.SOUND,
    ),
    Patch(
        "torch.fx.experimental.sym_node:SymNode.guard_bool",
        checks.guard_bool,
        "torch raises for a check of arguments even if the other branch raises",
    ),
    Patch(
        "torch._export.non_strict_utils:_NonStrictTorchFunctionHandler._override",
        value_calls.override_value_functions,
        "torch.equal, allclose, is_nonzero and one_hot read fake tensors, which have no values",
        strict=False,
    ),
    Patch(
        "torch:Tensor.__format__",
        concrete_values.text,
        "the text of a fake tensor is its description, with which models look up modules",
        PatchKind.SOUND,
        strict=False,
    ),
)
"""Applied by torch.export, on top of the others, if a model asks tensors for their values."""

SEED_PATCHES: tuple[Patch, ...] = (
    *(
        TorchFunctionPatch(
            f"torch:{name}",
            process_state.draw,
            "torch.export records the function without the seed of forward",
            PatchKind.SOUND,
        )
        for name in ("rand", "randn", "randint", "randperm")
    ),
    *(
        TorchFunctionPatch(
            f"torch:{name}",
            process_state.draw_at_run_time,
            "it draws from the generator that forward has seeded",
            PatchKind.SOUND,
        )
        for name in (
            *("bernoulli", "multinomial", "normal", "poisson", "rand_like", "randint_like", "randn_like"),
            *("Tensor.bernoulli", "Tensor.bernoulli_", "Tensor.cauchy_", "Tensor.exponential_", "Tensor.geometric_"),
            *("Tensor.log_normal_", "Tensor.multinomial", "Tensor.normal_", "Tensor.random_", "Tensor.uniform_"),
        )
    ),
)
"""Applied by torch.export from the first ``torch.manual_seed`` in forward on."""


def missing_targets() -> tuple[MissingTarget, ...]:
    """The targets of ``CAPTURE_PATCHES`` that the installed versions lack, of libraries only if they are imported."""
    found = (patch.missing for patch in CAPTURE_PATCHES if patch.applies)
    return tuple(target for target in found if target is not None)


def _patches_of(extensions: Iterable[Extension]) -> Iterator[Patch]:
    return itertools.chain.from_iterable(one.patches for one in extensions)


def all_patches() -> tuple[Patch, ...]:
    """The rows of all tables, with the add-ons'."""
    own = (*CAPTURE_PATCHES, *VALUE_PATCHES, *REWRITING_PATCHES, *SEED_PATCHES, *LOADING_PATCHES, *INTEGER_PATCHES)
    return (*own, *_patches_of(all_extensions()))


@contextmanager
def capture_patches(*, strict: bool = False, plain: bool = False) -> Iterator[None]:
    """Apply ``CAPTURE_PATCHES``, and the patches of the add-ons for the model, for this thread, under the lock.

    In strict mode TorchDynamo traces byte code; a plain call has no patches for reach.
    """
    patches = (*CAPTURE_PATCHES, *_patches_of(active_extensions()))
    with (
        # Within the lock: a table of another thread's capture would count as one of before.
        _turns.one_at_a_time(),
        tracing_state.without_function_tables(),
        process_state.unseeded(partial(applied, SEED_PATCHES)),
        applied(
            patch for patch in patches if (patch.strict or not strict) and not (plain and patch.kind is PatchKind.REACH)
        ),
    ):
        yield


@contextmanager
def value_patches(model: Module, inputs: Mapping[str, Any], states: Collection[str]) -> Iterator[None]:
    """Apply ``VALUE_PATCHES`` if values are tracked.

    ``inputs`` are leaves by label, ``states`` the FQNs of tensors of the model that become inputs.
    """
    values = concrete_values.active_values()
    if values is None:
        yield
        return
    values.track(model, inputs, states)
    with applied(VALUE_PATCHES):
        yield


@contextmanager
def tracing_patches() -> Iterator[None]:
    """Apply ``TRACING_PATCHES`` for this thread, under the lock."""
    with applied(TRACING_PATCHES):
        yield
