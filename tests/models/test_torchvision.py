"""torchvision's models that no other test exports: saved, loaded in ONNX Runtime, compared with eager torch.

Every test run has one network of each architecture, the smallest variant or one with few layers. The variants that
torchvision lists have the marker ``nightly``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fxonnx

from ..saved import run_from_file
from . import test_quantized_models, zoo
from .test_detection import FEW, expect_same_objects, prepared
from .test_detection import detection as detection  # a fixture
from .test_models import Example, compare
from .torchvision_shim import import_torchvision

pytestmark = pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")


@dataclass(frozen=True)
class Family:
    """The inputs of the variants of one architecture.

    Attributes:
        first: Shape of the example.
        second: Shape at which the dynamic export runs.
        names: Names of the dynamic axes.
        inputs: Number of inputs, all of one shape.
        options: Arguments of the constructor.
        kwargs: Keyword inputs other than tensors.
        tolerance: Maximum error, relative to the largest magnitude of the output.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    names: dict[int, str]
    inputs: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    kwargs: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-4

    def case(self, name: str, build: Callable[..., nn.Module] | None = None, **marks: Any) -> zoo.Case:
        """The row of one variant, which ``build`` or else torchvision's constructor of that name makes."""

        def built() -> zoo.Example:
            models = import_torchvision().models
            model = models.get_model(name, weights=None, **self.options) if build is None else build()
            return zoo.without_zeros(model), self._args(self.first), self.kwargs

        shapes = (self.names,) * self.inputs + (None,) * len(self.kwargs)
        return zoo.Case(name, built, shapes, lambda: (self._args(self.second), self.kwargs), self.tolerance, **marks)

    def _args(self, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        return tuple(torch.randn(shape) for _ in range(self.inputs))


BATCH = {0: "batch"}
IMAGES = {0: "batch", 2: "height", 3: "width"}
CLIPS = {0: "batch", 2: "frames", 3: "height", 4: "width"}

images = Family((2, 3, 64, 64), (3, 3, 48, 96), IMAGES)
clips = Family((1, 3, 8, 32, 32), (2, 3, 11, 48, 40), CLIPS)
segmented = Family((2, 3, 64, 64), (3, 3, 48, 96), IMAGES, options={"weights_backbone": None}, tolerance=1e-3)
flow = Family((1, 3, 128, 128), (2, 3, 136, 144), IMAGES, inputs=2, kwargs={"num_flow_updates": 2})
pairs = Family((1, 3, 128, 128), (2, 3, 128, 128), BATCH, inputs=2, kwargs={"num_flow_updates": 1})

FAMILIES = {
    "alexnet": images,
    "convnext": images,
    "deeplabv3": segmented,
    "densenet": images,
    "efficientnet": images,
    "fcn": segmented,
    "googlenet": Family((2, 3, 64, 64), (3, 3, 48, 96), IMAGES, options={"init_weights": False}),
    "inception_v3": Family((2, 3, 75, 75), (3, 3, 96, 80), IMAGES, options={"init_weights": False}, tolerance=1e-3),
    "lraspp": segmented,
    "maxvit": Family((1, 3, 224, 224), (2, 3, 224, 224), BATCH),
    "mc3": clips,
    "mnasnet": images,
    "mobilenet": images,
    # torch specializes a batch of 1 where it is written to in place.
    "mvit": Family((2, 3, 16, 224, 224), (1, 3, 16, 224, 224), BATCH),
    "r2plus1d": clips,
    "r3d": clips,
    "raft": flow,
    "regnet": images,
    "resnet": images,
    "resnext": images,
    # The smallest size that its last pooling accepts.
    "s3d": Family((1, 3, 13, 221, 221), (1, 3, 16, 224, 256), CLIPS),
    "shufflenet": images,
    "squeezenet": images,
    "swin3d": clips,
    "swin": Family((2, 3, 64, 64), (3, 3, 40, 60), IMAGES),
    # Both sizes are larger than the window in the same stages.
    "swin_b": Family((2, 3, 64, 64), (3, 3, 96, 72), IMAGES),
    "swin_s": Family((2, 3, 64, 64), (3, 3, 96, 72), IMAGES),
    "vgg": Family((2, 3, 32, 32), (3, 3, 64, 96), IMAGES),
    "vit": Family((2, 3, 32, 32), (3, 3, 32, 32), BATCH, options={"image_size": 32}),
    "vit_h_14": Family((2, 3, 28, 28), (3, 3, 28, 28), BATCH, options={"image_size": 28}),
    "wide_resnet": images,
}


def maxvit() -> nn.Module:
    from torchvision.models.maxvit import MaxVit

    return MaxVit((32, 32), 8, 2, [8, 16], [1, 1], head_dim=8, stochastic_depth_prob=0.0)


def mvit(*, second_version: bool) -> nn.Module:
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    blocks = [
        MSBlockConfig(1, 16, 32 if not second_version else 16, [], [3, 3, 3], [], [1, 2, 2]),
        MSBlockConfig(2, 32 if not second_version else 16, 32, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 1, 1]),
    ]
    return MViT(
        (32, 32),
        4,
        blocks,
        residual_pool=second_version,
        residual_with_cls_embed=False,
        rel_pos_embed=second_version,
        proj_after_attn=second_version,
        num_classes=10,
    )


def swin_v2() -> nn.Module:
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

    parts = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2}
    return SwinTransformer([4, 4], 16, [2, 2], [2, 4], [8, 8], num_classes=10, **parts)


def swin3d() -> nn.Module:
    from torchvision.models.video.swin_transformer import SwinTransformer3d

    return SwinTransformer3d([2, 4, 4], 16, [2], [2], [4, 3, 3], num_classes=10)


def raft() -> nn.Module:
    return import_torchvision().models.get_model("raft_small", weights=None)


SHORT_CLIPS = Family((2, 3, 4, 32, 32), (3, 3, 4, 32, 32), BATCH)
CASES = (
    *(
        FAMILIES[family].case(name)
        for family, name in {
            "deeplabv3": "deeplabv3_mobilenet_v3_large",
            "googlenet": "googlenet",
            "lraspp": "lraspp_mobilenet_v3_large",
            "mc3": "mc3_18",
            "mnasnet": "mnasnet0_5",
            "mobilenet": "mobilenet_v3_small",
            "regnet": "regnet_y_400mf",
            "shufflenet": "shufflenet_v2_x0_5",
        }.items()
    ),
    Family((2, 3, 32, 32), (3, 3, 32, 32), BATCH).case("maxvit", maxvit),
    SHORT_CLIPS.case("mvit_v1", partial(mvit, second_version=False)),
    SHORT_CLIPS.case("mvit_v2", partial(mvit, second_version=True)),
    FAMILIES["swin"].case("swin_v2", swin_v2),
    Family((1, 3, 8, 32, 32), (2, 3, 7, 40, 48), CLIPS).case("swin3d", swin3d),
    pairs.case("raft", raft),
)
TESTED = {case.name for case in (*CASES, *zoo.CASES)}


def listed(module: str = "") -> list[str]:
    """The names of the models of torchvision, or of one of its modules."""
    models = import_torchvision().models
    return models.list_models(module=getattr(models, module)) if module else models.list_models()


def variants() -> list[str]:
    """The models that are neither quantized nor detectors, which have tests of their own."""
    others = {*listed("quantization"), *listed("detection"), *TESTED}
    return [name for name in listed() if name not in others]


def family_of(name: str) -> Family:
    return FAMILIES[max((prefix for prefix in FAMILIES if name.startswith(prefix)), key=len)]


def rounding(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The error of a model in eager mode by rounding, relative to the largest magnitude of the output.

    Rounding errors grow from layer to layer in deep networks with random weights.
    """
    with torch.no_grad():
        exact = pytree.tree_leaves(copy.deepcopy(model).double()(*(value.double() for value in args), **kwargs))
        found = pytree.tree_leaves(model(*args, **kwargs))
    pairs = zip(found, exact, strict=True)
    return max(((one - two).abs().max() / two.abs().max()).item() for one, two in pairs)


def check(case: zoo.Case, *, dynamic: bool, is_deep: bool) -> None:
    example = Example(case, *case.example())
    program = example.export(dynamic=dynamic)
    run_from_file(program)
    for args, kwargs in [(example.args, example.kwargs), *([case.second_inputs()] if dynamic else [])]:
        own = rounding(example.model, args, kwargs) if is_deep else 0.0
        tolerance = max(case.tolerance, 5 * own)
        assert tolerance < 0.5, "rounding hides every error"
        compare(replace(example, case=replace(case, tolerance=tolerance)), program, args, kwargs)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_architecture(case: zoo.Case, dynamic: bool) -> None:
    check(case, dynamic=dynamic, is_deep=False)


# With random weights, rounding in eager float32 is as large as their outputs.
CHAOTIC = frozenset(
    {
        ("efficientnet_b6", True),
        ("efficientnet_v2_l", True),
        *(("efficientnet_b7", dynamic) for dynamic in (False, True)),
    }
)


def _variants() -> Iterator[Any]:
    for name in variants():
        for dynamic in (False, True):
            reason = "torch: rounding hides every error"
            marks = [pytest.mark.xfail((name, dynamic) in CHAOTIC, reason=reason, raises=AssertionError)]
            yield pytest.param(name, dynamic, marks=marks, id=f"{name}-{'dynamic' if dynamic else 'static'}")


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "dynamic"), _variants())
def test_variant(name: str, dynamic: bool) -> None:
    # RAFT computes in float32 only.
    check(family_of(name).case(name), dynamic=dynamic, is_deep=not name.startswith("raft"))


@pytest.mark.nightly
@pytest.mark.parametrize("name", listed("detection"))
def test_detector(name: str, detection: Any) -> None:
    """The detectors with torchvision's own backbones; test_detection has small ones."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"num_classes": 4, "weights": None, "weights_backbone": None}
    if "rcnn" in name:
        options |= {"min_size": 64, "max_size": 96, **FEW}
    else:
        options |= {"topk_candidates": 30, "detections_per_img": 20}
        options |= {} if name.startswith("ssd") else {"min_size": 64, "max_size": 96, "score_thresh": 0.01}
    if name.startswith("keypoint"):
        options["num_classes"] = 2
    model = prepared(import_torchvision().models.get_model(name, **options))
    if "rcnn" not in name:
        # Otherwise so many scores are 1 that their order is arbitrary.
        for part, module in model.named_modules():
            if isinstance(module, nn.Conv2d) and "classification_head" in part:
                module.weight.mul_(0.1)
    shapes = {"images_0": {1: "height", 2: "width"}}
    program = fxonnx.export(model, ([torch.rand(3, 80, 72)],), dynamic_shapes=shapes)
    run_from_file(program)
    for size in ((80, 72), (70, 90)):
        image = torch.randn(3, *size)
        (expected,) = model([image])
        (found,) = program.unflatten(program([image]))
        # Scores of random weights are nearly equal: the last ones of 20 may be others.
        expect_same_objects(list(found.values()), list(expected.values()), replaced=2)


def test_every_model_of_torchvision_has_a_test() -> None:
    quantized = {f"quantized_{name}" for name in test_quantized_models.NAMES}
    assert {*variants(), *listed("detection"), *quantized, *TESTED} >= {*listed()}
    assert [name for name in variants() if not any(name.startswith(prefix) for prefix in FAMILIES)] == []
