"""The profiles of all targets. A new target is a row here, and its table of kernels a JSON file in this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, TypeAlias

import onnx_ir as ir

from .kernel_table import KernelTable
from .profile import ATTENTION_FORMS, CPU_KERNELS, QuantizedForm, Restriction, TargetProfile

__all__ = ["DEFAULT_PROFILE", "PROFILES", "Target", "profile_of"]

Target: TypeAlias = Literal[
    "onnxruntime",
    "onnxruntime-cuda",
    "onnxruntime-genai",
    "onnxruntime-genai-cuda",
    "onnxruntime-genai-webgpu",
    "onnxruntime-genai-directml",
    "onnxruntime-genai-tensorrt-rtx",
    "onnxruntime-web",
    "onnxruntime-web-webgpu",
    "tensorrt",
    "openvino",
]
"""The runtimes that models are exported for and checked against."""

_FLOAT16, _FLOAT, _DOUBLE = ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE
_INT8, _UINT8 = ir.DataType.INT8, ir.DataType.UINT8

# The last one is the layout of convolutions in files that ONNX Runtime has optimized.
_ONNXRUNTIME_DOMAINS = frozenset({"ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"})

_ONNXRUNTIME = TargetProfile(
    name="onnxruntime",
    runtime="ONNX Runtime on the CPU",
    kernels=CPU_KERNELS,
    default_opset=23,
    newest_opset=26,
    domains=_ONNXRUNTIME_DOMAINS,
    patterns=MappingProxyType({"flat_tokens": True}),
    falls_back_to_cpu=True,
    expands_functions=True,
    # Its function takes twice the time of the form with InstanceNormalization.
    avoided=frozenset({"GroupNormalization"}),
    computes_in=MappingProxyType({_FLOAT16: _FLOAT}),
    layout_rules=frozenset({("DequantizeLinear", "Transpose")}),
    # Convolutions and matrix products of int8 activations are not fused on x86: they are exported as uint8.
    quantized_form=QuantizedForm(frozenset({_UINT8}), integer_products=True, explicit_zero_points=True),
)

# With these, a session or a call fails or the results are wrong, as found with ONNX Runtime 1.31 on an H100.
_CUDA_RESTRICTIONS: Mapping[str, Restriction] = MappingProxyType(
    {
        "Attention": Restriction(
            attributes=MappingProxyType(
                {"softmax_precision": (0, *(int(dtype) for dtype in (_FLOAT, _FLOAT16, ir.DataType.BFLOAT16)))}
            )
        ),
        "BatchNormalization": Restriction(attributes=MappingProxyType({"training_mode": (0,)})),
        "DequantizeLinear": Restriction(
            attributes=MappingProxyType({"block_size": (0,)}), types=frozenset({_INT8, _UINT8})
        ),
        "Cast": Restriction(attributes=MappingProxyType({"saturate": (1,)}), types=frozenset({ir.DataType.BFLOAT16})),
        "RMSNormalization": Restriction(whole=(1,)),
        "ScatterND": Restriction(
            attributes=MappingProxyType({"reduction": ("none",)}), types=frozenset({ir.DataType.DOUBLE})
        ),
    }
)

_ONNXRUNTIME_CUDA = TargetProfile(
    name="onnxruntime-cuda",
    runtime="ONNX Runtime with CUDA",
    kernels=KernelTable("onnxruntime-cuda"),
    # Attention and RMSNormalization have kernels; MaxPool, InstanceNormalization, Elu and Selu have none from opset 22.
    default_opset=23,
    older_opset=20,
    older_operators=frozenset(
        {
            *(f"aten::max_pool{rank}d" for rank in (1, 2, 3)),
            *(f"aten::max_pool{rank}d_with_indices" for rank in (1, 2, 3)),
            *(f"aten::adaptive_max_pool{rank}d" for rank in (1, 2, 3)),
            *("aten::instance_norm", "aten::group_norm", "aten::native_group_norm", "aten::elu", "aten::selu"),
        }
    ),
    newest_opset=26,
    domains=_ONNXRUNTIME_DOMAINS,
    falls_back_to_cpu=True,
    expands_functions=True,
    definitions=MappingProxyType({("GroupNormalization", ir.DataType.BFLOAT16): 21}),
    computes_in=MappingProxyType({_FLOAT16: _FLOAT}),
    restrictions=_CUDA_RESTRICTIONS,
    layout_rules=frozenset({("DequantizeLinear", "Transpose")}),
)

# Operators of com.microsoft replace parts of language models, whose caches are buffers of a fixed length.
_ONNXRUNTIME_GENAI = replace(
    _ONNXRUNTIME,
    name="onnxruntime-genai",
    runtime="onnxruntime-genai on the CPU",
    patterns=MappingProxyType({"group_query_attention": True, "skip_norms": True, "mixture_of_experts": True}),
    has_matmul_nbits=True,
)

_ONNXRUNTIME_GENAI_CUDA = replace(
    _ONNXRUNTIME_CUDA,
    name="onnxruntime-genai-cuda",
    runtime="onnxruntime-genai with CUDA",
    older_opset=None,
    older_operators=frozenset(),
    patterns=MappingProxyType({**_ONNXRUNTIME_GENAI.patterns, "mixture_of_experts": False}),
    # A bias disables flash attention.
    attention=ATTENTION_FORMS - {"bias"},
    has_matmul_nbits=True,
)

# The build for WebAssembly has no kernels for float64, 16-bit integers and most strings.
_WEB_KERNELS = KernelTable("onnxruntime-web")

_ONNXRUNTIME_WEB = replace(
    _ONNXRUNTIME,
    name="onnxruntime-web",
    runtime="onnxruntime-web on WebAssembly",
    kernels=_WEB_KERNELS,
    cpu_kernels=_WEB_KERNELS,
    has_matmul_nbits=True,
)

_ONNXRUNTIME_WEB_WEBGPU = TargetProfile(
    name="onnxruntime-web-webgpu",
    runtime="onnxruntime-web with WebGPU",
    kernels=KernelTable("onnxruntime-web-webgpu"),
    cpu_kernels=_WEB_KERNELS,
    # Opset 22 redefines pooling, Sin and Cos, and 23 adds Attention, all without a kernel.
    default_opset=20,
    newest_opset=26,
    domains=_ONNXRUNTIME_DOMAINS,
    patterns=MappingProxyType({"skip_norms": True}),
    falls_back_to_cpu=True,
    expands_functions=True,
    computes_in=MappingProxyType({_FLOAT16: _FLOAT}),
    # These forms are loaded, and fail in every call.
    restrictions=MappingProxyType(
        {
            "ConvTranspose": Restriction(ranks=(3, 4)),
            "MaxPool": Restriction(outputs=1),
            "Resize": Restriction(attributes=MappingProxyType({"antialias": (0,)})),
        }
    ),
    layout_rules=frozenset({("DequantizeLinear", "Transpose")}),
    has_matmul_nbits=True,
)

_ONNXRUNTIME_GENAI_WEBGPU = replace(
    _ONNXRUNTIME_WEB_WEBGPU,
    name="onnxruntime-genai-webgpu",
    runtime="onnxruntime-genai with WebGPU",
    cpu_kernels=CPU_KERNELS,
    # RMSNormalization and RotaryEmbedding have kernels, and decoders have no pooling.
    default_opset=23,
    avoided=frozenset({"Attention"}),
    patterns=MappingProxyType({"group_query_attention": True, "skip_norms": True}),
    # Its kernel reads no softcap. It adds a bias, which disables flash attention.
    attention=ATTENTION_FORMS - {"bias", "softcap"},
)

_ONNXRUNTIME_GENAI_DIRECTML = TargetProfile(
    name="onnxruntime-genai-directml",
    runtime="onnxruntime-genai with DirectML",
    kernels=KernelTable("onnxruntime-directml"),
    # It has kernels up to opset 21: none of RMSNormalization and Attention.
    default_opset=20,
    newest_opset=21,
    domains=_ONNXRUNTIME_DOMAINS,
    # GroupQueryAttention has no kernel for windows, softcaps and sinks, or for several tokens after others.
    patterns=MappingProxyType({"skip_norms": True}),
    falls_back_to_cpu=True,
    expands_functions=True,
    computes_in=MappingProxyType({_FLOAT16: _FLOAT}),
    layout_rules=frozenset({("DequantizeLinear", "Transpose")}),
    restrictions=MappingProxyType({"com.microsoft::MatMulNBits": Restriction(absent=(4, 5))}),
    has_matmul_nbits=True,
    avoided=frozenset({"Gelu"}),
)

# Found with the models of one operator in the tests; the rest is the column "Restrictions" of docs/operators.md of
# ONNX-TensorRT.
_ALL_ONES = MappingProxyType({"dilations": (1,)})
_AXES = Restriction(constant=(1,))
_TWO_AXES = tuple(range(2, 9))
_TENSORRT_RESTRICTIONS: Mapping[str, Restriction] = MappingProxyType(
    {
        **dict.fromkeys(("Squeeze", "Unsqueeze"), _AXES),
        **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"), _AXES),
        **dict.fromkeys(("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"), _AXES),
        **dict.fromkeys(("ArgMax", "ArgMin", "Hardmax", "LogSoftmax", "Softmax"), Restriction(ranks=_TWO_AXES)),
        "Attention": Restriction(
            absent=(4, 5, 6),
            outputs=1,
            ranks=(3, 4),
            attributes=MappingProxyType({"softcap": (0.0,), "softmax_precision": ()}),
        ),
        "AveragePool": Restriction(ranks=(3, 4, 5), attributes=_ALL_ONES),
        "BatchNormalization": Restriction(outputs=1, attributes=MappingProxyType({"training_mode": (0,)})),
        "CumSum": Restriction(constant=(1,)),
        "DeformConv": Restriction(ranks=(3, 4)),
        "EyeLike": Restriction(static=True),
        "GridSample": Restriction(ranks=(4, 5)),
        "GroupNormalization": Restriction(ranks=_TWO_AXES[1:]),
        "LSTM": Restriction(attributes=MappingProxyType({"input_forget": (0,), "layout": (0,)})),
        "LayerNormalization": Restriction(outputs=1),
        "LpPool": Restriction(attributes=_ALL_ONES),
        "MaxPool": Restriction(outputs=1, ranks=(3, 4, 5), attributes=_ALL_ONES),
        "OneHot": Restriction(constant=(1,)),
        "Resize": Restriction(
            attributes=MappingProxyType(
                {
                    "antialias": (0,),
                    "coordinate_transformation_mode": (
                        *("half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn", "asymmetric", "align_corners"),
                    ),
                    "keep_aspect_ratio_policy": ("stretch",),
                    "mode": ("nearest", "linear", "cubic"),
                }
            )
        ),
        "STFT": Restriction(constant=(1, 2)),
        "ScatterND": Restriction(attributes=MappingProxyType({"reduction": ("none",)})),
        "TensorScatter": Restriction(ranks=(4,), attributes=MappingProxyType({"axis": (-2,)})),
        "TopK": Restriction(attributes=MappingProxyType({"sorted": (1,)})),
    }
)

_TENSORRT = TargetProfile(
    name="tensorrt",
    runtime="TensorRT",
    kernels=KernelTable("tensorrt"),
    default_opset=20,
    # Its documentation names opset 24, its parser has no limit.
    newest_opset=26,
    # Attention runs in fused kernels or not at all: no float32, no precision of the softmax, static heads of 12 to 256
    # elements. It fuses the plain operators where it has a kernel.
    avoided=frozenset({"Attention", "Compress", "DFT", "Resize.axes", "one axis"}),
    refuses_types=True,
    patterns=MappingProxyType({"packed_attention": False}),
    computes_in=MappingProxyType({_DOUBLE: _FLOAT}),
    restrictions=_TENSORRT_RESTRICTIONS,
    data_dependent=frozenset({"NonMaxSuppression", "NonZero"}),
    quantized_form=QuantizedForm(frozenset({_INT8, ir.DataType.FLOAT8E4M3FN}), symmetric=True),
)

# Its parser knows GroupQueryAttention and MatMulNBits, but its packages do not have the plugins that run them.
_ONNXRUNTIME_GENAI_TENSORRT_RTX = replace(
    _TENSORRT,
    name="onnxruntime-genai-tensorrt-rtx",
    runtime="onnxruntime-genai with TensorRT for RTX",
)

_OPENVINO = TargetProfile(
    name="openvino",
    runtime="OpenVINO",
    kernels=KernelTable("openvino"),
    default_opset=20,
    newest_opset=26,
    domains=frozenset({"com.microsoft"}),
    # The floor of a float64 quotient shows it; test_openvino.py asks the installed version.
    computes_in=MappingProxyType({_DOUBLE: _FLOAT}),
    # It returns an output with one more axis.
    restrictions=MappingProxyType({"DFT": Restriction(attributes=MappingProxyType({"onesided": (0,)}))}),
)

PROFILES: Mapping[Target, TargetProfile] = MappingProxyType(
    {
        "onnxruntime": _ONNXRUNTIME,
        "onnxruntime-cuda": _ONNXRUNTIME_CUDA,
        "onnxruntime-genai": _ONNXRUNTIME_GENAI,
        "onnxruntime-genai-cuda": _ONNXRUNTIME_GENAI_CUDA,
        "onnxruntime-genai-webgpu": _ONNXRUNTIME_GENAI_WEBGPU,
        "onnxruntime-genai-directml": _ONNXRUNTIME_GENAI_DIRECTML,
        "onnxruntime-genai-tensorrt-rtx": _ONNXRUNTIME_GENAI_TENSORRT_RTX,
        "onnxruntime-web": _ONNXRUNTIME_WEB,
        "onnxruntime-web-webgpu": _ONNXRUNTIME_WEB_WEBGPU,
        "tensorrt": _TENSORRT,
        "openvino": _OPENVINO,
    }
)
"""Target to profile."""

DEFAULT_PROFILE = replace(
    _ONNXRUNTIME,
    default_opset=20,
    patterns=MappingProxyType({}),
    avoided=frozenset(),
    quantized_form=QuantizedForm(frozenset({_INT8, _UINT8}), explicit_zero_points=True),
)
"""Without a target: a plain graph for any runtime, which ONNX Runtime's CPU execution provider runs."""


def profile_of(target: Target | None) -> TargetProfile:
    """Return the profile of a target, or the default profile."""
    return DEFAULT_PROFILE if target is None else PROFILES[target]
