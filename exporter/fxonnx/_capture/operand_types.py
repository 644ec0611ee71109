"""Operators whose operands must have one dtype: calls that eager torch refuses and fake tensors accept."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import guarding_hint_or_throw, has_guarding_hint

from fxonnx_translations._torch_compat import FakeTensor, OpOverload, unset_fake_temporarily

from .._provenance import module_path
from ..errors import CaptureError
from .constraints.guard_recorder import line_of_node
from .inputs.example_inputs import user_input_names
from .shapes.dynamic_shapes import Leaf

__all__ = ["INTEGERS", "SAME_DTYPE", "check_operand_types", "conversion_of_inputs", "state_default_dtypes"]

_LAYER = ("input", "weight", "bias")
_NORM = (*_LAYER, "running_mean", "running_var")
_CELL = ("input", "hx", "w_ih", "w_hh", "b_ih", "b_hh")
_NORMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("layer_norm", "group_norm", "native_layer_norm", "native_group_norm"), _LAYER),
        **dict.fromkeys(("batch_norm", "instance_norm", "native_batch_norm", "_native_batch_norm_legit"), _NORM),
    }
)
SAME_DTYPE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **_NORMS,
        **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "convolution"), _LAYER),
        **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _LAYER),
        **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _CELL),
        **dict.fromkeys(("matmul", "cross", "linalg_cross"), ("self", "other")),
        "mm": ("self", "mat2"),
        "mv": ("self", "vec"),
        "addmm": ("self", "mat1", "mat2"),
        "addbmm": ("self", "batch1", "batch2"),
        "embedding_bag": ("weight", "per_sample_weights"),
        **dict.fromkeys(("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), ("input", "grid")),
        "cdist": ("x1", "x2"),
        "complex": ("real", "imag"),
        "polar": ("abs", "angle"),
        "heaviside": ("self", "values"),
        "index_put": ("self", "values"),
        **dict.fromkeys(("put", "index_add", "index_copy", "index_reduce"), ("self", "source")),
        **dict.fromkeys(("binary_cross_entropy", "binary_cross_entropy_with_logits"), ("self", "target", "weight")),
        "huber_loss": ("self", "target"),
        **dict.fromkeys(("nll_loss", "nll_loss2d", "nll_loss_nd", "cross_entropy_loss"), ("self", "weight")),
    }
)
"""ATen operator to the operands that must have one dtype, as far as fake tensors do not check it.

In-place variants and all overloads are included. Operators that promote, such as ``add`` and ``cat``, and operators
whose shape functions check the dtypes, such as ``bmm`` and ``scaled_dot_product_attention``, are not.
"""
INTEGERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "index_put": ("indices",),
        **dict.fromkeys(("index_add", "index_copy", "index_reduce", "index_select", "index_fill", "put"), ("index",)),
        **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm"), ("self", "other")),
        **dict.fromkeys(("bitwise_left_shift", "bitwise_right_shift"), ("self", "other")),
    }
)
"""ATen operator to the operands that must be integers or bools, as far as fake tensors do not check it."""

_CHECKED = SAME_DTYPE.keys() | INTEGERS.keys()
_LOW_PRECISION = ([torch.float16], [torch.bfloat16])
_METHODS = MappingProxyType(
    {
        torch.float16: "half()",
        torch.bfloat16: "bfloat16()",
        torch.float32: "float()",
        torch.float64: "double()",
        torch.int64: "long()",
    }
)
_Operand = tuple[str, torch.fx.Node, torch.Tensor]


def check_operand_types(program: ExportedProgram, leaves: Sequence[Leaf] = ()) -> None:
    """Raise for a call of operands with different dtypes that eager torch refuses.

    Calls under ``torch.autocast``, which casts operands, and calls with tensor subclasses or quantized tensors are not
    checked.

    Args:
        program: The captured program.
        leaves: The example inputs; without them, inputs have the names of their placeholders.

    Raises:
        CaptureError: With torch's message, the operands and the line.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return
    for node in _calls(program.graph_module):
        operands = _suspicious_operands(node)
        message = _refusal(node) if operands else None
        if message is not None:
            raise _error(node, operands, message, _origins(program, leaves))


def _calls(owner: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """The calls of operators of the table, also in subgraphs that do not run under autocast."""
    cast = set()
    for node in owner.graph.nodes:
        if node.op != "call_function":
            continue
        target = node.target
        if target is torch.ops.higher_order.wrap_with_autocast and node.args[2]:
            cast.add(str(node.args[4].target))
        elif isinstance(target, OpOverload) and _base_name(target) in _CHECKED:
            yield node
    for name, child in owner.named_children():
        if isinstance(child, torch.fx.GraphModule) and name not in cast:
            yield from _calls(child)


def _base_name(target: OpOverload) -> str:
    """The name of an operator without namespace and overload: ``addmm`` for ``aten::addmm_.default``."""
    namespace, name = target._schema.name.split("::")
    return name.removesuffix("_") if namespace == "aten" else ""


def _suspicious_operands(node: torch.fx.Node) -> list[_Operand]:
    """The operands that violate a row of the tables."""
    target: Any = node.target
    name = _base_name(target)
    operands = _operands(node, SAME_DTYPE.get(name, ()))
    dtypes = [value.dtype for _, _, value in operands]
    # All norms of torch accept float32 weights for inputs in half precision.
    is_mixed_norm = name in _NORMS and dtypes[:1] in _LOW_PRECISION and set(dtypes[1:]) == {torch.float32}
    if len(set(dtypes)) > 1 and not is_mixed_norm:
        return operands
    integers = _operands(node, INTEGERS.get(name, ()))
    return integers if any(value.is_floating_point() for _, _, value in integers) else []


def _operands(node: torch.fx.Node, names: Collection[str]) -> list[_Operand]:
    """The tensors among some operands, with their names; none if one of them is not a plain tensor."""
    if not names:
        return []
    found: list[_Operand] = []
    target: Any = node.target
    for index, argument in enumerate(target._schema.arguments):
        if argument.name not in names:
            continue
        given = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        for item in given if isinstance(given, list | tuple) else (given,):
            if isinstance(item, torch.fx.Node):
                value = item.meta.get("val")
                if type(value) is not FakeTensor or value.is_quantized:
                    return []
                found.append((argument.name, item, value))
    return found


def state_default_dtypes(program: ExportedProgram) -> None:
    """Pass a dtype to operators that create tensors in a default dtype which forward has set, in place.

    torch.export records them without a dtype: outside of forward, they have the dtype of the caller.
    """
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            value = node.meta.get("val")
            if (
                isinstance(node.target, OpOverload)
                and isinstance(value, torch.Tensor)
                and value.is_floating_point()
                and value.dtype != torch.get_default_dtype()
                and any(argument.name == "dtype" for argument in node.target._schema.arguments)
                and node.kwargs.get("dtype") is None
                and not any(isinstance(source.meta.get("val"), torch.Tensor) for source in node.all_input_nodes)
            ):
                node.update_kwarg("dtype", value.dtype)


def _refusal(node: torch.fx.Node) -> str | None:
    """The message of eager torch for a call on zeros of the same shapes and dtypes; None if it accepts the call."""
    target: Any = node.target

    def zeros(argument: torch.fx.Node) -> Any:
        value = argument.meta.get("val")
        if isinstance(value, torch.Tensor):
            return torch.zeros([_hint(size) for size in value.shape], dtype=value.dtype, device="cpu")
        return value if value is None else _hint(value)

    with unset_fake_temporarily(), torch.no_grad():
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), zeros)
        try:
            target(*args, **kwargs)
        except (RuntimeError, ValueError, IndexError) as error:
            return str(error).splitlines()[0]
    return None


def _hint(size: Any) -> Any:
    """The value of a size for the example; 1 if it depends on data."""
    if not isinstance(size, torch.SymInt):
        return size
    return guarding_hint_or_throw(size) if has_guarding_hint(size) else 1


def _origins(program: ExportedProgram, leaves: Sequence[Leaf]) -> dict[str, tuple[str, bool]]:
    """Placeholder to the name of the input, parameter or buffer, and whether it is an input."""
    found = {
        spec.arg.name: (spec.target, False)
        for spec in program.graph_signature.input_specs
        if spec.target is not None and spec.kind != InputKind.USER_INPUT
    }
    names = user_input_names(program)
    labels = [leaf.label for leaf in leaves] or names
    return found | {name: (label, True) for name, label in zip(names, labels, strict=False)}


def _origin(node: torch.fx.Node, origins: Mapping[str, tuple[str, bool]]) -> tuple[str, bool]:
    """The input or parameter from which an operand is computed without a change of its dtype; ("", False) if none."""
    dtype = node.meta["val"].dtype
    while node.op != "placeholder" and node.all_input_nodes:
        source = node.all_input_nodes[0]
        if getattr(source.meta.get("val"), "dtype", dtype) != dtype:
            return "", False
        node = source
    return origins.get(node.name, ("", False))


def _error(
    node: torch.fx.Node, operands: list[_Operand], message: str, origins: Mapping[str, tuple[str, bool]]
) -> CaptureError:
    """The error for a refused call."""
    target: Any = node.target
    lines = [f"eager torch refuses this call of {target._schema.name.replace('::', '.')}: {message}"]
    for name, argument, value in operands:
        label, is_input = _origin(argument, origins)
        shown = f" ({'the input ' if is_input else ''}{label!r})" if label else ""
        lines.append(f"  {name}: {str(value.dtype).removeprefix('torch.')}{shown}")
    path, line = module_path(node), line_of_node(node)
    lines += [f"  in: {path}"] if path else []
    lines += [f"  at: {line}"] if line is not None else []
    return CaptureError("\n".join(lines), hint=_conversion(operands, origins))


def _conversion(operands: list[_Operand], origins: Mapping[str, tuple[str, bool]]) -> str:
    """The hint that makes the operands of a call equal in dtype, by the conversion of an input if there is one."""
    known = [(*_origin(argument, origins), value.dtype) for _, argument, value in operands]
    if len({dtype for _, _, dtype in known}) == 1:
        return "convert them to integers, such as .long()"
    others = [dtype for _, is_input, dtype in known if not is_input]
    wanted = others[0] if others else known[0][2]
    has_weights = any(label and not is_input for label, is_input, _ in known)
    for label, is_input, dtype in reversed(known):
        if is_input and dtype != wanted:
            hint = f"pass {label}.{_METHODS.get(wanted, f'to({wanted})')} as the example input"
            if has_weights and dtype.is_floating_point:
                hint += f", or convert the model: model.{_METHODS.get(dtype, f'to({dtype})')}"
            return hint
    return f"convert the operands to one dtype, such as .to({wanted})"


def conversion_of_inputs(model: torch.nn.Module, leaves: Sequence[Leaf]) -> str:
    """The hint for an error of torch about different dtypes: the inputs whose dtype is not the weights'."""
    tensors = [(leaf.label, leaf.value) for leaf in leaves if isinstance(leaf.value, torch.Tensor)]
    weights = [parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()]
    wanted = next(iter(weights), tensors[0][1].dtype if tensors else torch.float32)
    calls = [
        f"{label}.{_METHODS.get(wanted, f'to({wanted})')}"
        for label, value in tensors
        if value.is_floating_point() and value.dtype != wanted
    ]
    if calls:
        return f"pass {', '.join(calls)} as the example {'input' if len(calls) == 1 else 'inputs'}"
    return "convert the operands to one dtype"
