"""Interpolation of images and signals.

ONNX Runtime's Resize equals torch's interpolation for linear and cubic. For nearest the two round differently: where they
could select different elements, torch's indices are computed and gathered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
import torch

from ..._builder.dtypes import BFLOAT16, FLOAT, INT64
from ..._builder.op import Op
from ..._builder.symbolic_dims import Dim, is_static
from ..._registry import Accepts, OpCall, Translation

_LONGEST = 1 << 14
"""Symbolic sizes are checked for equal rounding up to this size."""

_SINGLE = np.float32

_CUBIC = frozenset({torch.ops.aten.upsample_bicubic2d.vec, torch.ops.aten.upsample_bicubic2d.default})


@dataclass(frozen=True)
class Axis:
    """One spatial axis.

    Attributes:
        size: Input size.
        out: Output size.
        factor: The scale factor of torch's coordinates; None for out / size.
        floored: Whether out is size * factor rounded down, which a symbolic size does not show.
    """

    size: Dim
    out: Dim
    factor: float | None
    floored: bool = False

    @property
    def scale(self) -> float | None:
        """Return the scale for Resize, or None if Resize would compute another output size from it."""
        if isinstance(self.size, int) and isinstance(self.out, int):
            return self.out / self.size if self.factor is None else _fitting(self.factor, self.size, self.out)
        quotient = self.out / self.size
        if isinstance(quotient, float) or quotient.is_number:
            ratio = float(quotient)
            return ratio if self.factor in (None, ratio) and _is_safe(ratio) else None
        return self.factor if self.floored and self.factor is not None and _is_safe(self.factor) else None


def _fitting(factor: float, size: int, out: int) -> float | None:
    """Return the factor in float32, rounded so that it gives the output size."""
    if size == out:
        # Resize copies if no size changes, whatever the scale.
        return 1.0 if factor == 1 else None
    nearest = _SINGLE(factor)
    for scale in (nearest, np.nextafter(nearest, _SINGLE(math.inf))):
        # ONNX shape inference computes the size in float64, ONNX Runtime in float32.
        if int(size * float(scale)) == out == int(_SINGLE(size) * scale):
            return float(scale)
    return None


def _is_safe(factor: float) -> bool:
    """Whether size * factor is exact in float32, and differs from the size unless the factor is 1."""
    numerator, _ = factor.as_integer_ratio()
    return 0 < numerator <= 256 and (factor <= 1 or factor >= 1.5)


def axes_of(
    op: Op, input: ir.Value, output_size: Sequence[Dim] | None, factors: Sequence[float | None] | None
) -> list[Axis]:
    count = op.rank_of(input) - 2
    sizes = zip(op.dims(input)[2:], op.result.shape[2:], factors or [None] * count, strict=True)
    return [
        Axis(size, out, None if factor is None else float(factor), floored=output_size is None)
        for size, out, factor in sizes
    ]


def _by_scale(axes: Sequence[Axis]) -> bool:
    """Whether Resize gets scales instead of sizes."""
    return all(axis.scale is not None and (axis.factor is not None or _is_safe(axis.scale)) for axis in axes)


def _resized(op: Op, x: ir.Value, axes: Sequence[Axis], **attributes: Any) -> ir.Value:
    """Emit one Resize of the trailing axes."""
    lead = op.dims(x)[: op.rank_of(x) - len(axes)]
    if _by_scale(axes):
        scales = [1.0] * len(lead) + [axis.scale for axis in axes]
        return op.Resize(x, None, op.const(scales, FLOAT), **attributes)
    wanted = [axis.out for axis in axes]
    # TensorRT computes a negative size for dynamic axes that are not named.
    if op.opset >= 18 and not is_static(lead) and op.has_kernel("Resize.axes", FLOAT):
        names = list(range(len(lead), len(lead) + len(axes)))
        return op.Resize(x, None, None, op.sizes(wanted), axes=names, **attributes)
    return op.Resize(x, None, None, op.sizes([*lead, *wanted]), **attributes)


# ---- linear and cubic


def _reject_for_resize(call: OpCall) -> str | None:
    """Reject calls for which Resize differs from torch."""
    input = call.arguments.get("input", call.arguments.get("self"))
    if input.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"ONNX Runtime does not interpolate {input.dtype} as torch does"
    if call.arguments["align_corners"]:
        return None
    factors = call.arguments.get("scale_factors") or [
        call.arguments.get(name) for name in ("scales", "scales_d", "scales_h", "scales_w") if name in call.arguments
    ]
    wanted = call.arguments.get("output_size")
    given = [factor for factor in factors if factor is not None]
    if given and len(given) < len(input.shape) - 2:
        return "scale factors for some axes only"
    copies = call.target not in _CUBIC
    for position, factor in enumerate(given):
        size = input.shape[2 + position]
        if not isinstance(size, int):
            if wanted:
                return f"scale factor {factor} of an axis of symbolic size with a given output size"
            fits, floored = _is_safe(factor), True
        else:
            out = int(wanted[position]) if wanted else int(size * factor)
            fits = (copies and size == out) or _fitting(factor, size, out) is not None
            floored = out == int(size * factor)
        if not fits and not (floored and (copies or _extra_pixels(factor) is not None)):
            return f"scale factor {factor} of an axis of size {size} gives another size in ONNX"
    return None


def _extra_pixels(factor: float) -> int | None:
    """Return the number of pixels to add so that the size always changes, or None if it would be too large."""
    if factor <= 1 or factor >= 1.5:
        return 0
    return math.ceil(1 / (factor - 1)) if factor >= 1.01 else None


def _resize_and_crop(op: Op, x: ir.Value, axes: Sequence[Axis], copies: bool, **attributes: Any) -> ir.Value:
    """Resize by factors that float32 does not represent: to a slightly larger size, then crop to torch's size.

    The coordinates depend on the scale alone, so the remaining pixels equal torch's.
    """
    factors = [axis.factor for axis in axes if axis.factor is not None]
    spares = [_extra_pixels(factor) for factor in factors]
    lead = op.rank_of(x) - len(axes)
    numbers = [1.0 if factor == 1 else float(np.nextafter(_SINGLE(factor), _SINGLE(math.inf))) for factor in factors]
    ends = op.sizes([axis.out for axis in axes])
    scales = op.const([1.0] * lead + numbers, FLOAT)
    if copies and any(spare != 0 for spare in spares):
        stays = op.Equal(op.sizes([axis.size for axis in axes]), ends)
        changing = op.Where(stays, op.const([1.0] * len(axes), FLOAT), op.const(numbers, FLOAT))
        scales = op.Concat(op.const([1.0] * lead, FLOAT), changing, axis=0)
    elif any(spares):
        # torch repeats the last pixel beyond the edge as well.
        x = op.Pad(x, [0] * (op.rank_of(x) + lead) + [int(spare or 0) for spare in spares], mode="edge")
    large = op.Resize(x, None, scales, **attributes)
    return op.Slice(large, [0] * len(axes), ends, list(range(lead, lead + len(axes))))


def _interpolated(
    op: Op,
    input: ir.Value,
    output_size: Sequence[Dim] | None,
    factors: Sequence[float | None] | None,
    align_corners: bool,
    **attributes: Any,
) -> ir.Value:
    # Aligned corners depend on the sizes only.
    axes = axes_of(op, input, output_size, None if align_corners else factors)
    copies = attributes["mode"] == "linear" or "antialias" in attributes
    # Where torch copies an axis whose size stays the same, its factor is 1.
    whole = None if all(axis.factor is None for axis in axes) else 1.0
    axes = [Axis(axis.size, axis.out, whole, True) if copies and axis.size == axis.out else axis for axis in axes]
    if all(axis.size == axis.out and axis.factor in (None, 1) for axis in axes):
        return input
    is_wide = op.dtype_of(input) == BFLOAT16 and not op.has_kernel("Resize", BFLOAT16)
    x = op.widened(input, FLOAT) if is_wide else input
    is_signal = len(axes) == 1
    if is_signal:
        # ONNX Runtime's kernel for rank 4 (images) is faster than that for rank 3.
        x, axes = op.Unsqueeze(x, [2]), [Axis(1, 1, axes[0].factor and 1.0, axes[0].floored), *axes]
    attributes["coordinate_transformation_mode"] = "align_corners" if align_corners else "half_pixel"
    if _by_scale(axes) or all(axis.factor is None for axis in axes):
        result = _resized(op, x, axes, **attributes)
    else:
        result = _resize_and_crop(op, x, axes, copies, **attributes)
    return op.rounded(op.Squeeze(result, [2]) if is_signal else result, op.result.dtype)


def _cubic(a: float) -> Mapping[str, Any]:
    return {"mode": "cubic", "cubic_coeff_a": a}


# ---- antialiased


def _reject_antialiased(call: OpCall) -> str | None:
    """Reject calls for which antialiased Resize does not exist or differs from torch."""
    if call.opset < 18:
        return "Resize has antialiasing from opset 18 on"
    if call.arguments["align_corners"]:
        return "ONNX Runtime's antialiasing does not align corners as torch does"
    return _reject_for_resize(call)


def _antialiased(
    op: Op,
    input: ir.Value,
    output_size: Sequence[Dim] | None,
    factors: Sequence[float | None] | None,
    align_corners: bool,
    **attributes: Any,
) -> ir.Value:
    return _interpolated(op, input, output_size, factors, align_corners, antialias=1, exclude_outside=1, **attributes)


# ---- nearest


@dataclass(frozen=True)
class _Nearest:
    """A rule for the index of the nearest element.

    Attributes:
        offset: Added to the output position before scaling: 0.5 for pixel centers.
        whole: Whether the scale factor is ignored if the size stays the same or doubles; both values if that is
            data-dependent.
    """

    offset: float
    whole: tuple[bool, ...] = (False,)

    def torch_indices(self, axis: Axis, size: int, out: int) -> list[np.ndarray]:
        """Return torch's input positions for each value of ``whole``; in float32 whatever the element type."""
        results = []
        for whole in self.whole:
            inverse = _SINGLE(size) / _SINGLE(out) if axis.factor is None else _SINGLE(1.0 / axis.factor)
            if whole and out in (size, 2 * size):
                inverse = _SINGLE(size / out)
            positions = np.arange(out, dtype=_SINGLE) + _SINGLE(self.offset)
            results.append(np.minimum(np.floor(positions * inverse), size - 1).astype(np.int64))
        return results

    def static_indices(self, axis: Axis) -> list[int] | None:
        """Return torch's input positions if they are constant, else None."""
        if not isinstance(axis.size, int) or not isinstance(axis.out, int):
            return None
        first, *others = self.torch_indices(axis, axis.size, axis.out)
        return list(map(int, first)) if all((first == other).all() for other in others) else None

    def is_resize(self, axis: Axis, size: int, out: int, scale: float) -> bool:
        """Whether Resize selects the same elements."""
        if self.offset == 0:
            exact = np.arange(out, dtype=_SINGLE) / _SINGLE(scale)
        else:
            exact = (np.arange(out) + self.offset) / scale
            # Resize's rounding of halves depends on float32 errors, unless the positions are exact.
            ties = np.abs(exact - np.round(exact)) < 1e-4
            if ties.any() and math.frexp(scale)[0] != 0.5:
                return False
        theirs = np.minimum(np.floor(exact), size - 1)
        return all((theirs == ours).all() for ours in self.torch_indices(axis, size, out))

    def is_resize_of(self, axis: Axis) -> bool:
        """Whether Resize selects the same elements at every size of the axis."""
        scale = axis.scale
        if scale is None:
            return False
        if isinstance(axis.size, int) and isinstance(axis.out, int):
            return self.is_resize(axis, axis.size, axis.out, scale)
        tried = [(math.ceil(_LONGEST / scale), _LONGEST)]
        if scale % 1:
            # Only small sizes can stay the same or double with a scale other than 1 or 2.
            small = [(size, int(size * scale)) for size in range(1, 129)]
            tried += [(size, out) for size, out in small if out in (size, 2 * size)]
        return all(self.is_resize(Axis(size, out, scale), size, out, scale) for size, out in tried)


_FLOOR, _CENTER = _Nearest(0.0), _Nearest(0.5)

_SMALL_IMAGE = 128
"""torch's kernel ignores factors of axes that stay the same or double if output height + width is at most this."""


def _floor_kind(axes: Sequence[Axis]) -> _Nearest:
    if len(axes) != 2:
        return _FLOOR
    total = axes[0].out + axes[1].out
    return _Nearest(0.0, (total <= _SMALL_IMAGE,) if isinstance(total, int) else (False, True))


def _runtime_indices(op: Op, kind: _Nearest, axis: Axis, axes: Sequence[Axis]) -> ir.Value:
    """Return torch's input positions of an axis, an INT64 vector."""
    size, out = op.scalar(axis.size), op.scalar(axis.out)
    inverse = ratio = op.Div(op.cast(size, FLOAT), op.cast(out, FLOAT))
    if axis.factor is not None:
        inverse = op.const(float(_SINGLE(1.0 / axis.factor)), FLOAT)
        if True in kind.whole:
            whole = op.Or(op.Equal(out, size), op.Equal(out, op.Mul(size, 2)))
            total = op.Add(*(op.scalar(other.out) for other in axes))
            inverse = op.Where(op.And(whole, op.LessOrEqual(total, _SMALL_IMAGE)), ratio, inverse)
    positions = op.cast(op.Range(0, out, 1), FLOAT)
    if kind.offset:
        positions = op.Add(positions, kind.offset)
    return op.Min(op.cast(op.Mul(positions, inverse), INT64), op.Sub(size, 1))


def _nearest(
    op: Op,
    input: ir.Value,
    output_size: Sequence[Dim] | None,
    factors: Sequence[float | None] | None,
    *,
    center: bool,
) -> ir.Value:
    axes = axes_of(op, input, output_size, factors)
    if all(axis.size == axis.out and axis.factor in (None, 1) for axis in axes):
        return input
    kind = _CENTER if center else _floor_kind(axes)
    attributes = (
        {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
        if center
        else {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    )
    # ONNX Runtime has no kernels for the other types.
    has_kernel = op.dtype_of(input).name in ("FLOAT", "FLOAT16", "UINT8", "INT8", "INT32")
    is_told = _by_scale(axes) or all(axis.factor is None for axis in axes)
    if has_kernel and is_told and all(map(kind.is_resize_of, axes)):
        return _resized(op, input, axes, mode="nearest", **attributes)
    result = input
    for position, axis in enumerate(axes, start=2):
        places = kind.static_indices(axis)
        if places is None:
            result = op.Gather(result, _runtime_indices(op, kind, axis, axes), axis=position)
        elif places != list(range(int(op.dims(result)[position]))):
            result = op.Gather(result, op.const(places, INT64), axis=position)
    return result


# ---- overloads


class Method(Protocol):
    """A translation of all overloads of an operator.

    The factors are None where the sizes were given; ``align_corners`` is an option of all but nearest.
    """

    def __call__(
        self,
        op: Op,
        input: ir.Value,
        output_size: Sequence[Dim] | None,
        factors: Sequence[float | None] | None,
        **options: bool,
    ) -> ir.Value: ...


def _by_factors(
    op: Op,
    input: ir.Value,
    output_size: Sequence[Dim] | None,
    scale_factors: Sequence[float] | None,
    *,
    method: Method,
    **options: bool,
) -> ir.Value:
    """aten::_upsample_bilinear2d_aa.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor
    aten::_upsample_bicubic2d_aa.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor
    aten::upsample_linear1d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor
    aten::upsample_bilinear2d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor
    aten::upsample_trilinear3d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor
    aten::upsample_bicubic2d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor
    aten::upsample_nearest1d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor
    aten::upsample_nearest2d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor
    aten::upsample_nearest3d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor
    aten::_upsample_nearest_exact1d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor
    aten::_upsample_nearest_exact2d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor
    aten::_upsample_nearest_exact3d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor
    """
    return method(op, input, output_size, scale_factors, **options)


def _by_scales(
    op: Op,
    self: ir.Value,
    output_size: Sequence[Dim],
    scales: float | None = None,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    method: Method,
    **options: bool,
) -> ir.Value:
    """aten::_upsample_bilinear2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor
    aten::_upsample_bicubic2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor
    aten::upsample_linear1d(Tensor self, SymInt[1] output_size, bool align_corners, float? scales=None) -> Tensor
    aten::upsample_bilinear2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor
    aten::upsample_trilinear3d(Tensor self, SymInt[3] output_size, bool align_corners, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor
    aten::upsample_bicubic2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor
    aten::upsample_nearest1d(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor
    aten::upsample_nearest2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor
    aten::upsample_nearest3d(Tensor self, SymInt[3] output_size, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor
    aten::_upsample_nearest_exact1d(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor
    aten::_upsample_nearest_exact2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor
    aten::_upsample_nearest_exact3d(Tensor self, SymInt[3] output_size, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor
    """
    factors = [scales] if len(output_size) == 1 else [scales_d, scales_h, scales_w][-len(output_size) :]
    return method(op, self, output_size, factors, **options)


def upsampling(method: Method, *names: str, accepts: Accepts | None = None) -> tuple[Translation, Translation]:
    """The translations of the two overloads of operators: ``vec`` has a list of factors, the other one for each axis."""
    return (
        Translation(partial(_by_factors, method=method), tuple(f"aten::{name}.vec" for name in names), accepts),
        Translation(partial(_by_scales, method=method), tuple(f"aten::{name}" for name in names), accepts),
    )


TRANSLATIONS = (
    *upsampling(
        partial(_interpolated, mode="linear"),
        *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
        accepts=_reject_for_resize,
    ),
    *upsampling(partial(_interpolated, **_cubic(-0.75)), "upsample_bicubic2d", accepts=_reject_for_resize),
    *upsampling(partial(_antialiased, mode="linear"), "_upsample_bilinear2d_aa", accepts=_reject_antialiased),
    *upsampling(partial(_antialiased, **_cubic(-0.5)), "_upsample_bicubic2d_aa", accepts=_reject_antialiased),
    *upsampling(partial(_nearest, center=False), "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *upsampling(
        partial(_nearest, center=True),
        *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    ),
)
