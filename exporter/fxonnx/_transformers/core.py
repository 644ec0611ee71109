"""The names of the exporter beside its public API that this room uses: the only module here that imports them."""

from __future__ import annotations

from fxonnx_translations._builder.dtypes import from_torch
from fxonnx_translations._builder.initializers import DerivedTensor
from fxonnx_translations._torch_compat import pytree

from .._capture.inputs.pytree_objects import COUNTERS, flatten_objects
from .._capture.patches.libraries import attend_within_lengths, attend_within_segments, attention_function
from .._paths import not_written
from .._program.accuracy_level import UNROUNDED
from .._program.atomic_file import lock_file
from .._program.checkpoint_files import check_places, read_json, relative_place
from .._program.checkpoints import StoredTensor, read_weight_sources
from .._program.saving import may_reference
from .._quantize_config import UsualName
from .._targets import profile_of
from .._turns import one_at_a_time
from .._warnings import ignoring_warnings, warn_user
from ..quantization.dequantized_weights import dequantized_weights
from ..quantization.packed_weights import PackedTensor, PackedWeight, parts_of, read_packed_format
from ..quantization.quantized_weight import QuantizedWeight
from ..quantization.scaled_weights import CodedWeight, ScaledWeight, scales_of_weights
from ..quantization.stored_forms import StoredForm, StoredForms

__all__ = [
    "COUNTERS",
    "UNROUNDED",
    "CodedWeight",
    "DerivedTensor",
    "PackedTensor",
    "PackedWeight",
    "QuantizedWeight",
    "ScaledWeight",
    "StoredForm",
    "StoredForms",
    "StoredTensor",
    "UsualName",
    "attend_within_lengths",
    "attend_within_segments",
    "attention_function",
    "check_places",
    "dequantized_weights",
    "flatten_objects",
    "from_torch",
    "ignoring_warnings",
    "lock_file",
    "may_reference",
    "not_written",
    "one_at_a_time",
    "parts_of",
    "profile_of",
    "pytree",
    "read_json",
    "read_packed_format",
    "read_weight_sources",
    "relative_place",
    "scales_of_weights",
    "warn_user",
]
