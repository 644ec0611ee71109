"""The patches of torch that exports need, one row each."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from ..autograd_functions import record_function_call
from ..constraints.guard_recorder import (
    COMPARISONS,
    compare,
    guard_bool,
    guard_or_defer_runtime_assert,
    log_guard,
    maybe_guard_rel,
)
from ..constraints.size_forms import (
    CACHED_OPERATIONS,
    checked_layout,
    decided_relation,
    guard_or,
    sym_node_init,
    sym_node_operation,
)
from ..inputs.loop_bounds import example_index
from ..script import interpret_function
from . import (
    function_transforms,
    functional,
    shape_kernels,
    shape_rules,
    symbolic_sizes,
    torchvision_detection,
    tracing_state,
)
from .functional import infer_size, pooling_output_shape, scaled_dot_product_attention, tensor_split, unbind
from .patch import DecompositionPatch, KernelPatch, Patch, ShapePatch, ThreadDefault, ValuePatch, applied
from .tracing_state import RecordedData, WarningsOfTorch, print_nothing

__all__ = [
    "CAPTURE_PATCHES",
    "LOADING_PATCHES",
    "TRACING_PATCHES",
    "capture_patches",
    "loading_patches",
    "tracing_patches",
]

_DETECTION = "torchvision.models.detection"

TRACING_PATCHES: tuple[Patch, ...] = (
    Patch(
        "torch.fx._symbolic_trace:_new_patcher",
        tracing_state.new_patcher,
        "compiled functions that other threads call would raise: they must not be traced by torch.fx",
        strict=False,
    ),
    Patch(
        "torch.fx.experimental.symbolic_shapes:ShapeEnv.guard_or_defer_runtime_assert",
        guard_or_defer_runtime_assert,
        "a shortcut or a memory layout would become an assertion of the program",
    ),
    DecompositionPatch("aten::unbind.int", unbind, "the parts would keep their axis where the size is an expression"),
    KernelPatch("aten::tensor_split.sections", tensor_split, "torch asks which sections are longer at the example"),
    Patch(
        "torch.fx.experimental.symbolic_shapes:_guard_or",
        guard_or,
        "it simplifies expressions to answer what the example answers",
    ),
)
"""For whatever traces: torch.export, or make_fx when an operator is decomposed."""

CAPTURE_PATCHES: tuple[Patch, ...] = (
    *TRACING_PATCHES,
    Patch(
        "torch.export._trace:_override_builtin_ops",
        tracing_state.override_builtins,
        "max(a, b) and math.pow(a, b) of other threads would be those of tensors",
        strict=False,
    ),
    Patch(
        "torch.compiler:is_compiling",
        lambda original: original(),
        "optimizers of other threads would compute with tensors instead of numbers",
        elsewhere=tracing_state.no,
        strict=False,
    ),
    Patch(
        "torch.compiler:is_exporting",
        lambda original: original(),
        "models that other threads run would take the branch for exports",
        elsewhere=tracing_state.no,
        strict=False,
    ),
    Patch(
        "torch.fx.experimental.sym_node:SymNode.guard_bool",
        guard_bool,
        "torch keeps no record of the line of the user's code that specializes a size",
    ),
    *(
        Patch(
            f"torch.fx.experimental.sym_node:SymNode.{name}",
            partial(compare, relation),
            "torch's symbols are positive: it answers comparisons with 0 without a guard",
        )
        for name, relation in COMPARISONS.items()
    ),
    Patch(
        "torch.fx.experimental.symbolic_shapes:ShapeEnv._log_guard",
        log_guard,
        "a guard that narrows the range of a size leaves only the range",
    ),
    Patch(
        "torch.fx.experimental.symbolic_shapes:ShapeEnv._maybe_guard_rel",
        maybe_guard_rel,
        "torch would conclude from a shortcut that later checks always hold",
    ),
    Patch(
        "torch.fx.experimental.sym_node:SymNode.__init__",
        sym_node_init,
        "sizes of nested paddings and strides grow exponentially with the depth of a model",
    ),
    *(
        Patch(
            f"torch.fx.experimental.sym_node:SymNode._{name}",
            partial(sym_node_operation, name),
            "checks of memory layouts compute the same strides for every tensor",
        )
        for name in CACHED_OPERATIONS
    ),
    Patch(
        "torch._subclasses.fake_tensor:FakeTensorMode._dispatch_impl",
        shape_rules.dispatch,
        "decompositions run many operators on symbolic sizes to find the shape of an activation or a normalization",
    ),
    *(
        Patch(
            f"torch._prims_common:{name}",
            checked_layout,
            "every operator asks again for the layout of its tensors, by sizes and strides",
        )
        for name in ("is_contiguous", "is_channels_last_contiguous_2d", "is_channels_last_contiguous_3d")
    ),
    *(
        Patch(
            f"sympy.core.relational:{name}",
            partial(decided_relation, relation),
            "it takes milliseconds to find that assumptions do not decide a relation of strides",
        )
        for name, relation in (("is_eq", operator.eq), ("is_ge", operator.ge))
    ),
    ValuePatch("torch.fx.experimental.sym_node:SymNode.expr", symbolic_sizes.cached_expression, "it is slow"),
    Patch("torch.fx.experimental.sym_node:SymNode.maybe_as_int", symbolic_sizes.maybe_as_int, "it is slow"),
    KernelPatch("aten::lstm.input", shape_kernels.lstm, "torch runs the layer step by step, which fixes the length"),
    KernelPatch("aten::gru.input", shape_kernels.rnn, "torch runs the layer step by step, which fixes the length"),
    KernelPatch("aten::rnn_tanh.input", shape_kernels.rnn, "torch runs the layer step by step, which fixes the length"),
    KernelPatch("aten::rnn_relu.input", shape_kernels.rnn, "torch runs the layer step by step, which fixes the length"),
    ShapePatch("aten::conv_tbc", shape_kernels.conv_tbc, "its kernel reads the sizes as numbers, which fixes them"),
    KernelPatch(
        "aten::_shape_as_tensor", shape_kernels.shape_as_tensor, "fake tensors have no memory to read sizes from"
    ),
    KernelPatch("aten::max_pool1d", shape_kernels.max_pool1d, "its kernel makes a number of the length"),
    KernelPatch(
        "aten::max_pool1d_with_indices",
        shape_kernels.max_pool1d_with_indices,
        "its kernel makes a number of the length",
    ),
    KernelPatch("aten::take_along_dim", shape_kernels.take_along_dim, "its kernel makes numbers of the sizes"),
    KernelPatch("aten::kron", shape_kernels.kron, "its kernel makes numbers of the sizes"),
    KernelPatch("aten::cdist", shape_kernels.cdist, "it computes the distances of more than 25 points otherwise"),
    Patch("torch:linspace", functional.linspace, "the number of steps is an int in C++", strict=False),
    *(
        Patch(
            f"torch.nn.functional:{name}",
            replacement,
            "the size of the windows is an int in C++, also where it is that of the image",
            strict=False,
        )
        for name, replacement in functional.GLOBAL_POOLING
    ),
    Patch(
        "torch.nn.functional:gaussian_nll_loss",
        functional.gaussian_nll_loss,
        "it raises if a variance is negative, which is a branch on the values of a tensor",
        strict=False,
    ),
    Patch(
        "torch.nn.modules.transformer:_detect_is_causal_mask",
        functional.causality,
        "it compares the values of the mask with those of a causal one",
        strict=False,
    ),
    Patch(
        "torch._meta_registrations:pooling_output_shape_pad_lr",
        pooling_output_shape,
        "with ceil_mode the size is computed with a branch that holds for the example only",
    ),
    Patch(
        "torch.nn.functional:scaled_dot_product_attention",
        scaled_dot_product_attention,
        "transformers passes an is_causal that depends on a size, and the C++ function takes bools only",
    ),
    Patch(
        "torch._subclasses.fake_impls:infer_size",
        infer_size,
        "torch assumes that a size which may be 1 is not, even where the example says so",
    ),
    Patch(
        "torch.autograd.function:Function.apply",
        record_function_call,
        "a function with a symbolic of its own would be traced into",
        strict=False,
    ),
    Patch(
        "torch:Tensor.__index__",
        example_index,
        "range(n) with an input n raises, for lack of a value",
        strict=False,
    ),
    Patch(
        "torch._C:ScriptFunction.__call__",
        interpret_function,
        "a scripted function runs in C++, where the tracer cannot follow its branches",
        strict=False,
    ),
    *(
        Patch(
            f"torch._functorch.{target}",
            replacement,
            "torch.export records the calls above functorch, where the derivatives are not computed yet",
            strict=False,
        )
        for target, replacement in (
            ("eager_transforms:grad_and_value_impl", function_transforms.derivative),
            ("eager_transforms:_jvp_with_argnums", function_transforms.derivative),
            ("eager_transforms:_vjp_with_argnums", function_transforms.vector_jacobian_product),
            ("apis:vmap_impl", function_transforms.vmap),
        )
    ),
    Patch(
        "torch:manual_seed",
        tracing_state.keep_seed,
        "a seed in forward would be that of the whole process, training threads included",
        strict=False,
    ),
    ValuePatch(
        "torch:Tensor.data",
        RecordedData,
        "writes through tensor.data would be lost without a word",
        strict=False,
    ),
    ValuePatch(
        "torch.distributions.distribution:Distribution._validate_args",
        lambda original: ThreadDefault(False, original),
        "the validation of arguments branches on the values of tensors",
    ),
    ValuePatch(
        "torch._functorch._aot_autograd.frontend_utils:warnings",
        WarningsOfTorch,
        "torch warns of the list of weights of RNNs, which is restored",
    ),
    Patch("torch.export._trace:print", print_nothing, "torch prints the whole graph when an export fails"),
    Patch(
        "torch.utils._sympy.reference:PythonReferenceAnalysis.int_truediv",
        torchvision_detection.true_division,
        "torch has no Python form of it, which the size of a scaled image needs",
    ),
    Patch(
        "torchvision.ops.boxes:batched_nms",
        torchvision_detection.batched_nms,
        "it branches on the number of boxes",
        optional=True,
    ),
    Patch(
        "torchvision.ops.poolers:_multiscale_roi_align",
        torchvision_detection.multiscale_roi_align,
        "it loops over the number of regions",
        optional=True,
    ),
    Patch(
        "torchvision.ops.poolers:_infer_scale",
        torchvision_detection.infer_scale,
        "it rounds a ratio of sizes to a number",
        optional=True,
    ),
    Patch(
        f"{_DETECTION}.transform:paste_masks_in_image",
        torchvision_detection.paste_masks,
        "it loops over the boxes",
        optional=True,
    ),
    Patch(
        f"{_DETECTION}.transform:_resize_image_and_masks",
        torchvision_detection.resize_image,
        "it branches on which of two scales is the smaller one",
        optional=True,
    ),
    Patch(
        f"{_DETECTION}.transform:GeneralizedRCNNTransform.batch_images",
        torchvision_detection.batch_images,
        "it rounds sizes up as floats",
        optional=True,
    ),
    Patch(
        f"{_DETECTION}._utils:BoxCoder.decode",
        torchvision_detection.decode_boxes,
        "it branches on whether there are boxes",
        optional=True,
    ),
)
"""For torch.export; those with ``strict=False`` only for its own tracer, since TorchDynamo would trace into them."""

LOADING_PATCHES: tuple[Patch, ...] = (
    Patch("torch:load", tracing_state.load_tensors, "torch.export.load lets older files be unpickled as a whole"),
    ValuePatch(
        "torch.export.pt2_archive._package:pickle",
        tracing_state.TensorsOnly,
        "torch.export.load unpickles what the file marks as pickled",
        since="2.13",
    ),
)
"""For torch.export.load: the command line takes files from anywhere."""


@contextmanager
def capture_patches(*, strict: bool = False) -> Iterator[None]:
    """Apply ``CAPTURE_PATCHES`` for this thread, under the lock.

    Args:
        strict: Whether torch.export traces byte code with TorchDynamo.
    """
    with applied(patch for patch in CAPTURE_PATCHES if patch.strict or not strict):
        yield


@contextmanager
def tracing_patches() -> Iterator[None]:
    """Apply ``TRACING_PATCHES`` for this thread, under the lock."""
    with applied(TRACING_PATCHES):
        yield


@contextmanager
def loading_patches() -> Iterator[None]:
    """Apply ``LOADING_PATCHES`` for this thread, under the lock."""
    with applied(LOADING_PATCHES):
        yield
