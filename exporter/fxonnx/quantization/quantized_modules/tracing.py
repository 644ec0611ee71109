"""Run ``forward`` of a quantized model with stand-ins for quantized tensors and packed parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode

from fxonnx_translations._torch_compat import pytree

from ...errors import CaptureError
from .affine_tensor import AffineTensor, as_affine, quantized_tensors, scalar_of, unsupported
from .dynamic_functions import RECURRENT_FUNCTIONS
from .library_functions import LIBRARY_FUNCTIONS
from .packed_parameters import unpack_parameters
from .tensor_functions import CREATE, call_function, function_name

__all__ = ["check_outputs", "unpacked_parameters"]

_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "__float__": float,
    "__int__": int,
    "__index__": int,
    "item": lambda x: x,
}


class _QuantizedFunctions(TorchFunctionMode):
    """Functions that torch.export cannot trace: of packed parameters, and functions that create quantized tensors."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = function_name(func)
        if name in _CONVERSIONS:
            known = scalar_of(args[0])
            return func(*args, **kwargs) if known is args[0] else _CONVERSIONS[name](known)
        for functions in (CREATE, LIBRARY_FUNCTIONS, RECURRENT_FUNCTIONS):
            if name in functions:
                args, kwargs = pytree.tree_map_only(Tensor, as_affine, (args, kwargs))
                return functions[name](*args, **kwargs)
        if name.startswith("quantized::"):
            raise unsupported(f"torch.ops.{name.replace('::', '.')}", "")
        return func(*args, **kwargs)


def check_outputs(outputs: Any) -> None:
    """Reject quantized outputs.

    Raises:
        CaptureError: If an output is quantized.
    """
    if any(isinstance(leaf, AffineTensor) for leaf in pytree.tree_leaves(outputs)):
        raise CaptureError(
            "an output of the model is a quantized tensor: outputs of ONNX models have neither scale nor zero point",
            hint="return x.dequantize(), for example with DeQuantStub, or the integers x.int_repr()",
        )


@contextmanager
def unpacked_parameters(model: nn.Module) -> Iterator[None]:
    """Capture a quantized model with stand-ins: ``model.forward`` works without packed parameters inside the context.

    Args:
        model: The model, whose attributes ``preserve_model`` restores.
    """
    scalars = {name: buffer for name, buffer in model.named_buffers() if buffer.numel() == 1 and not buffer.is_meta}
    if not unpack_parameters(model):
        with quantized_tensors(call_function, {}):
            yield
        return
    forward, before = model.forward, type(model)

    @wraps(forward)
    def quantized_forward(*args: Any, **kwargs: Any) -> Any:
        fakes = {id(fake): scalars[name] for name, fake in model.named_buffers() if name in scalars}
        with quantized_tensors(call_function, fakes), _QuantizedFunctions():
            return forward(*args, **kwargs)

    model.forward = quantized_forward
    if isinstance(model, GraphModule):
        # torch.export does not call forward of a GraphModule, but interprets its graph.
        model.__class__ = type(before.__name__, (nn.Module,), {"__module__": before.__module__})
    try:
        yield
    finally:
        model.__class__ = before
