"""The call of torch.export, and the translation of its error messages to the user's parameters and lines."""

from __future__ import annotations

import dis
import re
from bdb import BdbQuit
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fxonnx_translations._torch_compat import (
    DataDependentOutputException,
    OpOverload,
    UnsupportedOperatorException,
    dynamo_config,
    get_proxy_mode,
    pytree,
    shape_config,
)

from .._callers_autocast import callers_autocast, under_autocast
from .._extensions import active_extensions, tracing
from .._user_files import is_user_file
from ..errors import CaptureError
from .constraints.guard_recorder import recorded_guards
from .constraints.size_forms import canonical_sizes
from .constraints.specialized_dims import specialized_dims_error
from .data_dependence.checks import OTHER_HINT, UNHASHABLE, is_data_dependent
from .eager_runs import eager_failure, hooks_for_model_only, preserved_random_states, user_line
from .edges import answered_beside_data_edges, answered_beside_edges
from .function_transforms import RetryTransforms, TransformTracing, closed_transforms, recorded_forward
from .inputs.converted_inputs import restore_frozen, stacked_results, with_pieces
from .inputs.example_inputs import BoundInputs, with_lists
from .inputs.preserve import Snapshot, preserve_model, register_compressed_attributes
from .inputs.pytree_objects import flatten_objects, unflatten_objects
from .inputs.tensor_memory import as_one_tensor, meta_as_cpu
from .operand_types import conversion_of_inputs
from .patches import capture_patches, is_tracing, value_patches
from .patches.shape_kernels import signed_slices
from .plan import AttemptLog, CapturePlan
from .shapes.dim_names import add_equality_guards
from .shapes.dynamic_shapes import DimHint, DimSpec, DynamicShapes, Leaf
from .suspicions.attribute_changes import noted_changes
from .suspicions.departures import DepartureKind, Evidence, record_departure
from .suspicions.handled_errors import HandledErrors, recorded_errors
from .suspicions.introspection import uncached_sizes, without_traced_results
from .traced_states import AssignedBuffers, Reassignment, growing_dims, held_in_buffers, held_weights

__all__ = [
    "eager_error",
    "explained_error",
    "export_module",
    "is_limit",
    "refined_dims",
    "reject_tracing",
]

MESSAGE_LINES = 8

# Messages of torch 2.13 for a dim hint or a Dim that tracing specializes to one size.
STATIC_PLACE = re.compile(r"static shape of (\d+) for dimension inputs\['(\w+)'\](.*?)(?:\.shape\[(\d+)\])?\.?$", re.M)
_FIRST_INDEX = re.compile(r"^(\w+)\[(\d+)\]")
STATIC_NAMES = (
    re.compile(r"^\s+(\w+) = (\d+)$", re.M),
    re.compile(r"marked (\w+) as dynamic but your code specialized it to be a constant \((\d+)\)"),
)
EQUAL_NAMES = re.compile(r"^\s+(\w+) = ([A-Za-z_]\w*)$", re.M)
NARROWED_NAMES = re.compile(r"^\s+(\w+) = Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)", re.M)
RELATED_NAMES = re.compile(r"^\s+(\w+) = (?:(\d+)\*)?([A-Za-z_]\w*)(?: ([+-]) (\d+))?$", re.M)


_QUANTIZED = ("__obj_flatten__", "quantized nyi in meta tensors", "QuantizedCPU", "quantized::", "for quantized.")
_QUANTIZED_HINT = (
    "a part of the model is quantized in a form that cannot be captured; quantize the float model with PT2E instead: "
    "prepare_pt2e and convert_pt2e of torchao.quantization.pt2e"
)
_NUMBER_HINT = (
    "the function takes plain numbers, and this one is computed from a tensor: compute with torch instead, or name the "
    "input that it depends on in frozen=[...], which makes it a constant"
)
_MEMORY_HINT = (
    "during the capture, tensors have no memory: compute with operators of torch, or leave the call out of exports: "
    "if not torch.compiler.is_exporting(): ..."
)
_PLAIN_SIZES = "SymIntArrayRef expected to contain only concrete integers"
_HINTS = {
    **dict.fromkeys(_QUANTIZED, _QUANTIZED_HINT),
    ".__new__() takes ": "remove __new__ from the NamedTuple that forward returns, or let it accept all of its fields",
    "is not differentiable with respect to argument": "export within torch.no_grad(), as the model is called",
    UNHASHABLE: (
        "a size or the value of a tensor is the key of a dictionary or set: convert a size with int(...), which makes "
        "it static; name the input that a value depends on in frozen=[...], which makes it a constant"
    ),
    "cannot be pickled or copied by copy.copy": (
        "copy with clone(); leave out what saves or sends a tensor: if not torch.compiler.is_exporting(): ..."
    ),
    **dict.fromkeys(("of type SymFloat", "SymFloat.__format__", "Rational instance"), _NUMBER_HINT),
    **dict.fromkeys(
        ("Cannot access data pointer", "Cannot access storage", "only available on CPU", "Not available for 'meta'"),
        _MEMORY_HINT,
    ),
    "do not support aliasing": "return a new tensor from each branch and body, such as x.clone()",
    "do not support input mutation": "compute a new tensor in each branch and body: x + 1 in the place of x.add_(1)",
    "to have same metadata": "return tensors of the shape and dtype of the operands from each branch and body",
    "must be Tensor, not ": "pass tensors: torch.tensor(values), or torch.rand(shape) for any values",
    "to be of the form": "pass an example with such a size, or another Dim",
    _PLAIN_SIZES: (
        "make the dim static; numbers of a torch.Generator can also be drawn once for the largest size, in __init__, "
        "and sliced here"
    ),
    "of type SymInt which has no callable": (
        "NumPy has this function for numbers only, not for dynamic sizes: call the function of Python's math instead, "
        "or convert the size with int(...), which makes it static"
    ),
}
# torch's messages for operands of different dtypes, as far as its shape functions check them.
_DTYPES = re.compile(
    r"same dtype|same scalar type|(should|must) be the same|expected scalar type|expected dtype torch\.|Type promoting"
    r"|equal to src\.dtype|\w+ did not match \w+$|match query dtype"
)
# Limits of torch's non-strict mode that its strict mode does not have.
_LIMITS = re.compile(
    r"\.numpy\(\) is not supported for tensor subclasses|Unable to cast NotImplemented to Tensor"
    r"|We found a fake tensor in the exported program constant's list"
    r"|doesn't work unless it is captured completely with torch\.compile"
)
_NO_FAKE = re.compile(r"no fake impl registered for <CustomOpDef\(([\w:.]+)\)>")
_TO_NUMPY = ".numpy() is not supported for tensor subclasses"
_RETURNED = re.compile(r"Found <class '([^']+)'> in output, which is not a known type")
_ADVICE = (
    *("For more ", "For extended logs", "For C++ stack", "If you suspect", "consider using data-dependent friendly"),
    *("Exception raised from ", "frame #", "<omitting python frames>", "This higher order operator doesn't work"),
)
_OTHER_ADVICE = ("Caused by: (", "Hint: ", "Explanation: ", "Higher Order Operator: ")
_ADVICE_IN_LINE = re.compile(r" \(e\.g\. FakeTensor, FunctionalTensor\)| If you're using torch\.compile/export/fx.*")
_END = re.compile("The error above occurred when calling torch.export|\n *from user code:|\n *Developer debug context")
_FAKE = re.compile(r"FakeTensor\(\.\.\., (?:device='[^']*', )?size=(\([^)]*\))[^)]*\)")
# torch's classes of numbers that are computed during the capture.
_NUMBERS = re.compile(r"(?:non-nested )?Sym(Int|Float|Bool)\b")
# torch's symbols for dynamic sizes (s58), and for values of tensors (u0, zuf1).
_SYMBOLS = re.compile(r"\b(s|u|zuf|zf)\d+\b")


def export_module(
    model: torch.nn.Module,
    inputs: BoundInputs,
    plan: CapturePlan,
    transforms: TransformTracing,
    reassigned: list[Reassignment],
    attempts: AttemptLog,
) -> ExportedProgram:
    """Run torch.export once.

    Args:
        model: The model.
        inputs: The example inputs.
        plan: The dynamic dims, the mode and other options.
        transforms: How transforms are traced; changed if they have to be traced differently.
        reassigned: Receives the buffers that become tensors of another kind.
        attempts: Receives the time and the failure.

    Raises:
        CaptureError: If the model handles an error of the capture.
        Exception: The error of torch.export.
    """
    before = replace(transforms)
    with recorded_guards(plan.log), canonical_sizes(), recorded_errors() as errors:
        try:
            with attempts.timed(plan.change):
                program = _run_torch_export(model, inputs, plan, transforms, reassigned)
        except RetryTransforms:
            raise
        except Exception as error:
            guard = next(filter(is_data_dependent, errors.handled()), None)
            if guard is None or is_data_dependent(error):
                raise
            # The fallback that the model takes after a data-dependent guard may fail as well.
            raise guard from None
        if transforms != before and not plan.strict:
            # The model has handled the signal.
            raise RetryTransforms
        if not plan.plain:
            _suspect_handled(errors)
    return program


def reject_tracing() -> None:
    """Check that torch does not trace a model in this thread: an export within ``forward`` would become part of it.

    Raises:
        CaptureError: If it does.
    """
    in_jit_trace = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if is_tracing() or in_jit_trace or get_proxy_mode() is not None:
        raise CaptureError(
            "the export is called while torch traces a model, from a forward that is itself exported or traced",
            hint="export one model after the other: call export outside of forward",
        )


def _suspect_handled(errors: HandledErrors) -> None:
    """Suspect the errors that the model has handled during the capture, in which it may have taken another branch.

    Raises:
        CaptureError: For an error of a branch or loop on data, which no run need show; a data-dependent guard, and an
            error of fxonnx, are raised as they are.
    """
    handled = errors.handled()
    for error in handled:
        if is_data_dependent(error) or isinstance(error, CaptureError):
            raise error
    for error in handled:
        (shown, _), name = _described(error), type(error).__name__
        if isinstance(error, TypeError) and UNHASHABLE in str(error):
            # The key of a cache, as in einops, whose handler computes the same without the cache.
            detail, refusal = "handled error of an unhashable size", None
        elif errors.is_conditional(error):
            raise CaptureError(
                f"the model handles an error of a branch or loop on the value of a tensor: {name}\n{shown}",
                hint="select the result with torch.where, or raise the error outside of forward",
            ) from None
        else:
            detail = f"handled {name}"
            # Without the error as its cause, whose frames hold tensors.
            refusal = CaptureError(
                f"the model handles an error that only the capture raises, and takes its fallback: {name}\n{shown}",
                hint="during the capture, tensors have no values and no memory: compute the result with operators of "
                "torch or before the export; run the model once before the export if it fills a cache",
            )
        place, found = user_line(error), Evidence.SIZES_IN_CODE
        record_departure(DepartureKind.INTROSPECTION, detail, line=place, evidence=found, refusal=refusal)


def eager_error(
    error: CaptureError, model: torch.nn.Module, inputs: BoundInputs, shapes: DynamicShapes
) -> CaptureError | None:
    """The model's own error, if it fails on the example in the same way as its capture."""
    return eager_failure(error, model, inputs, _tensor_forward(model.forward, inputs, shapes, None, []))


def _run_torch_export(
    model: torch.nn.Module,
    inputs: BoundInputs,
    plan: CapturePlan,
    transforms: TransformTracing,
    reassigned: list[Reassignment],
) -> ExportedProgram:
    shapes, strict = plan.shapes, plan.strict
    labels = [leaf.label for leaf in shapes.leaves]
    with (
        # TorchDynamo calls the functions without their caches itself.
        without_traced_results() if strict else uncached_sizes(),
        held_in_buffers(model, plan.states),
        # The first capture of a process in strict mode draws numbers.
        preserved_random_states() if strict else nullcontext(),
        preserve_model(model, inputs.tensors) as snapshot,
        meta_as_cpu(model, inputs) as inputs,
        tracing(model),
        capture_patches(strict=strict, plain=plan.plain),
        answered_beside_edges(plan.edges, plan.log),
        answered_beside_data_edges(
            plan.log, is_applied=plan.beside is not None, is_noted=plan.has_concrete_values and not plan.plain
        ),
        signed_slices(plan.log, is_applied=plan.unsigned is not None),
        hooks_for_model_only(model),
        nullcontext() if strict or plan.plain else held_weights(model),
        value_patches(model, dict(zip(labels, inputs.leaves, strict=True)), plan.states.names),
        growing_dims(model, plan.states),
        closed_transforms(transforms),
    ):
        register_compressed_attributes(snapshot)
        forward = _tensor_forward(model.forward, inputs, shapes, None if strict else snapshot, reassigned, plan.shared)
        reshaped: list[str] = []
        model.forward = forward if strict else _with_reshaped_inputs(forward, shapes.leaves, reshaped)
        # Oblivious: torch would specialize dynamic dims whose example size is 0 or 1.
        # With symbolic sizes the fake tensor cache only costs: it computes every result twice, to compare the two.
        cached = dynamo_config.fake_tensor_cache_enabled and shapes.is_static and not plan.states.axes
        with (
            shape_config.patch(backed_size_oblivious=True),
            # Otherwise the subgraphs of control flow operators would depend on the sizes of earlier calls.
            dynamo_config.patch(fake_tensor_cache_enabled=cached, automatic_dynamic_shapes=False),
        ):
            try:
                return torch.export.export(
                    model,
                    inputs.args,
                    inputs.kwargs,
                    dynamic_shapes=shapes.for_torch(partial(_torch_dim, refined=plan.refined)),
                    strict=strict,
                    prefer_deferred_runtime_asserts_over_guards=True,
                )
            except Exception as error:
                # torch.export reads the sizes of inputs after the call.
                if reshaped and not isinstance(error, RetryTransforms | CaptureError):
                    raise _reshaped_error(reshaped) from error
                raise


def _tensor_forward(
    forward: Callable[..., Any],
    inputs: BoundInputs,
    shapes: DynamicShapes,
    snapshot: Snapshot | None,
    reassigned: list[Reassignment],
    shared: Mapping[int, int] = MappingProxyType({}),
) -> Callable[..., Any]:
    """Wrap ``forward`` so that it takes and returns pytrees of tensors in place of objects.

    The wrapper's signature names the keywords of ``**kwargs``; torch.export assigns their specs wrongly otherwise.
    The snapshot is of the state before the call; None in strict mode, in which TorchDynamo traces the wrapper.
    """
    strict = snapshot is None
    called = under_autocast(forward, callers_autocast())
    if not strict:
        called = recorded_forward(called)

    # Read here, since TorchDynamo traces the function below in strict mode.
    table = inputs.table
    checks = [one.check_outputs for one in active_extensions() if one.check_outputs is not None]

    def tensor_forward(*args: Any, **kwargs: Any) -> Any:
        if not strict:
            add_equality_guards(shapes.shared, (args, kwargs))
            args, kwargs = as_one_tensor((args, kwargs), shared)
        args, kwargs = restore_frozen(table.frozen, args, kwargs)
        args, kwargs = (with_lists if strict else with_pieces)((args, kwargs), table.lists)
        if table.objects is not None:
            args, kwargs = unflatten_objects(table.objects, (args, kwargs))
        # torch.export undoes some changes.
        before = None if snapshot is None else AssignedBuffers(snapshot.model)
        with nullcontext() if snapshot is None else noted_changes(snapshot, (args, kwargs)):
            outputs = called(*args, **kwargs)
        if before is not None:
            reassigned[:] = before.write()
        for check in checks:
            check(outputs)
        # TorchDynamo traces this function, and a model that it traces makes no lists of dynamic length.
        return flatten_objects(outputs) if strict else stacked_results(outputs)

    tensor_forward.__signature__ = inputs.signature  # type: ignore[attr-defined]
    return tensor_forward


def _torch_dim(spec: DimSpec, refined: Mapping[str, Any]) -> Any:
    """The spec for torch.export: a named dim is ``Dim.DYNAMIC``, since names are assigned after the capture."""
    if isinstance(spec, str):
        return Dim.DYNAMIC
    if not refined or isinstance(spec, DimHint):
        return spec
    root = getattr(spec, "root", None)
    if root is None:
        return refined.get(spec.__name__, spec)
    return spec.fn(refined[root.__name__]) if root.__name__ in refined else spec


def _specialized_dims(message: str, shapes: DynamicShapes) -> list[tuple[Leaf, int | None, int]]:
    """Parse torch's message for dims that were specialized to one size."""
    by_place: dict[tuple[str, int | None], int] = {}
    for size, parameter, path, axis in STATIC_PLACE.findall(message):
        by_place[parameter + path, int(axis) if axis else None] = int(size)
    by_name = {name: int(size) for pattern in STATIC_NAMES for name, size in pattern.findall(message)}
    for name, other in EQUAL_NAMES.findall(message):
        if other in by_name:
            by_name[name] = by_name[other]
    found = []
    for leaf in shapes.leaves:
        for axis, spec in leaf.dims.items():
            # torch 2.15 calls the first item of *args "args_0".
            unpacked = _FIRST_INDEX.sub(r"\1_\2", leaf.label)
            size_of = by_place.get((leaf.label, axis), by_place.get((unpacked, axis)))
            if size_of is None and isinstance(spec, Dim):
                size_of = by_name.get(spec.__name__)
            if size_of is not None:
                found.append((leaf, axis, size_of))
    return found


def refined_dims(message: str, shapes: DynamicShapes) -> dict[str, Any]:
    """Parse the Dims that torch suggests: with a smaller range, or derived from another Dim."""
    fixes = message.partition("Suggested fixes:")[2]
    dims = {
        root.__name__: root
        for leaf in shapes.leaves
        for spec in leaf.dims.values()
        if isinstance(spec, Dim)
        for root in [getattr(spec, "root", spec)]
    }
    refined: dict[str, Any] = {}
    for name, low, high in NARROWED_NAMES.findall(fixes):
        if name in dims:
            dim = dims[name]
            refined[name] = Dim(name, min=max(int(low or 0), dim.min), max=min(int(high), dim.max) if high else dim.max)
    for name, factor, other, sign, offset in RELATED_NAMES.findall(fixes):
        if name in dims and other in dims and name != other:
            dim = refined.get(other, dims[other])
            dim = int(factor) * dim if factor else dim
            refined[name] = dim + int(sign + offset) if offset else dim
    return refined


def explained_error(error: Exception, model: torch.nn.Module, plan: CapturePlan) -> CaptureError:
    """The error itself if it is one of fxonnx; otherwise, dims that torch.export specializes, or its message."""
    if isinstance(error, CaptureError):
        return error
    specialized = [] if plan.strict or plan.refined else _specialized_dims(str(error), plan.shapes)
    if specialized:
        found: CaptureError = specialized_dims_error(specialized, plan.log)
    else:
        shown, hint = _described(error)
        if isinstance(error, BdbQuit):
            hint = "remove breakpoint() and pdb.set_trace() from the model: a debugger has no input here"
        if _DTYPES.search(shown):
            hint = conversion_of_inputs(model, plan.shapes.leaves)
        returned = _RETURNED.search(str(error))
        if returned is not None:
            problem = f"forward returns an object of the class {returned[1]}, which is not a tensor"
            hint = "return tensors in tuples, lists or dicts, or register the class: torch.export.register_dataclass"
            if returned[1] == "coroutine":
                hint = "define forward without async"
        elif custom := _operator_without_shapes(error):
            problem, hint = _without_shapes(custom, error)
        elif isinstance(error, UnsupportedOperatorException):
            problem = f"torch.export does not know the shape of the result of {error.func}\n{_place(error)}"
            hint = (
                "compute it with other operators, on padded tensors and a mask in the place of nested ones, or wrap "
                "the call in an operator of torch.library.custom_op with register_fake"
            )
        elif _PLAIN_SIZES in shown:
            problem = f"a size is dynamic here, and torch has this operator for plain numbers only\n{_place(error)}"
        elif _TO_NUMPY in shown:
            problem = f"forward returns a NumPy array, or computes with one\n{_place(error)}"
            hint = "return the tensor, and compute with functions of torch"
        elif isinstance(error, GuardOnDataDependentSymNode | DataDependentOutputException):
            problem = f"{_needed(error)}\n{shown}"
        else:
            problem = f"torch.export cannot capture the model: {type(error).__name__}\n{shown}"
            hint = hint or OTHER_HINT
        found = CaptureError(problem, hint=hint)
    found.__cause__ = error
    return found


def is_limit(error: BaseException | None) -> bool:
    """Whether torch, and not the model, raised an error by which its strict mode does not fail."""
    if error is None or not _LIMITS.search(str(error)):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not is_user_file(last.tb_frame.f_code.co_filename):
        return True
    return last.tb_frame.f_code.co_code[last.tb_lasti] != dis.opmap["RAISE_VARARGS"]


def _described(error: BaseException) -> tuple[str, str | None]:
    """torch's message without its debugging advice, the user's line of code, and a hint for known causes."""
    lines: list[str] = []
    is_guard = isinstance(error, GuardOnDataDependentSymNode | DataDependentOutputException)
    for line in "" if is_guard else _END.split(str(error), maxsplit=1)[0].splitlines():
        if line.lstrip().startswith(_OTHER_ADVICE) or line.startswith(_ADVICE):
            continue
        line = _ADVICE_IN_LINE.sub("", line)
        line = _SYMBOLS.sub(lambda found: "a size" if found[0].startswith("s") else "a value", line)
        if line.strip() or (lines and lines[-1].strip()):
            lines.append(line)
    shown = "\n".join(f"  {line}".rstrip() for line in lines[:MESSAGE_LINES]).rstrip()
    place = _place(error)
    hint = next((hint for marker, hint in _HINTS.items() if marker in str(error)), None)
    shown = _FAKE.sub(r"a tensor of size \1", shown)
    shown = _NUMBERS.sub(lambda found: f"symbolic {found[1].lower()}", shown)
    return "\n".join(text for text in (shown, place) if text), hint


def _place(error: BaseException) -> str:
    """The line of a message with the user's line of code; empty if there is none."""
    location = user_line(error)
    return f"  at: {location}" if location else ""


def _operator_without_shapes(error: BaseException) -> OpOverload | None:
    """The custom operator whose results have no known shape."""
    found = _NO_FAKE.search(str(error))
    if found is not None:
        namespace, _, name = found[1].partition("::")
        operator = getattr(getattr(torch.ops, namespace), name.partition(".")[0]).default
    else:
        operator = error.func if isinstance(error, UnsupportedOperatorException) else None
    is_custom = isinstance(operator, OpOverload) and operator.namespace not in ("aten", "prims")
    return operator if is_custom else None


def _without_shapes(operator: OpOverload, error: BaseException) -> tuple[str, str]:
    """The problem and the hint for a custom operator without a fake implementation."""
    name, arguments = operator._schema.name, [argument.name for argument in operator._schema.arguments]
    parameters, first = ", ".join(arguments), next(iter(arguments), "")
    return (
        f"torch does not know the shape of the result of {name}, which has no fake implementation\n{_place(error)}",
        f"register one that returns an empty tensor of the result's shape and dtype, for example "
        f'torch.library.register_fake("{name}", lambda {parameters}: torch.empty_like({first}))',
    )


def _needed(error: BaseException) -> str:
    """The reason why the capture needs the value of a tensor."""
    kind = (
        "a number" if "specialized" in str(error) or isinstance(error, DataDependentOutputException) else "a condition"
    )
    return f"{kind} that is computed from a tensor must be known during the capture"


def _with_reshaped_inputs(
    forward: Callable[..., Any], leaves: Sequence[Leaf], reshaped: list[str]
) -> Callable[..., Any]:
    """Wrap ``forward`` so that it reports the inputs that have another shape after the call."""

    def run(*args: Any, **kwargs: Any) -> Any:
        given = zip(pytree.tree_leaves((args, kwargs)), leaves, strict=False)
        before = [(value, value.shape, leaf.label) for value, leaf in given if isinstance(value, torch.Tensor)]
        outputs = forward(*args, **kwargs)
        reshaped[:] = [label for value, shape, label in before if _is_other(value.shape, shape)]
        return outputs

    run.__signature__ = forward.__signature__  # type: ignore[attr-defined]
    return run


def _is_other(shape: torch.Size, before: torch.Size) -> bool:
    """Whether a shape is another one than before.

    Expressions are compared, both after the call: a comparison of symbolic sizes would be a guard, and a guard of the
    model may replace a symbol by a number.
    """
    return [_expression(size) for size in shape] != [_expression(size) for size in before]


def _expression(size: int | torch.SymInt) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _reshaped_error(reshaped: Sequence[str]) -> CaptureError:
    """The error for a capture that failed for inputs with another shape after the call."""
    names = ", ".join(map(repr, reshaped))
    return CaptureError(
        f"forward changes the shape of its input {names} in place, which torch.export cannot capture",
        hint=f"assign the result to a variable: {reshaped[0]} = {reshaped[0]}.unsqueeze(0) in place of "
        f"{reshaped[0]}.unsqueeze_(0)",
    )
