"""torchvision's detectors: images of three sizes, with as many boxes as eager torch finds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxonnx

from .torchvision_shim import import_torchvision

CLASSES = 4
# The kernels of torchvision's operators that the tests use are slow.
FEW = {"rpn_pre_nms_top_n_test": 20, "rpn_post_nms_top_n_test": 8, "box_detections_per_img": 6}
SOME = {"topk_candidates": 30, "detections_per_img": 20, "score_thresh": 0.01}


def backbone(**options: Any) -> nn.Module:
    """Two levels of features of 32 channels: the nodes of a further level are the same."""
    torchvision = import_torchvision()
    from torchvision.ops import FeaturePyramidNetwork

    class Backbone(nn.Module):
        out_channels = 32

        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
            self.level = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
            extra = torchvision.ops.feature_pyramid_network.LastLevelMaxPool()
            self.fpn = FeaturePyramidNetwork([8, 16], 32, **({"extra_blocks": extra} | options))

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            x = self.stem(x)
            return self.fpn({"0": x, "1": self.level(x)})

    return Backbone()


def anchors(detection: Any, levels: int, *, ratios: int = 3) -> Any:
    sizes = tuple((8 * 2**level,) for level in range(levels))
    return detection.anchor_utils.AnchorGenerator(sizes, ((0.5, 1.0, 2.0)[:ratios],) * levels)


def faster_rcnn(detection: Any) -> nn.Module:
    return detection.FasterRCNN(backbone(), CLASSES, 64, 96, rpn_anchor_generator=anchors(detection, 3), **FEW)


def mask_rcnn(detection: Any) -> nn.Module:
    return detection.MaskRCNN(backbone(), CLASSES, 64, 96, rpn_anchor_generator=anchors(detection, 3), **FEW)


def faster_rcnn_v2(detection: Any) -> nn.Module:
    """The heads of ``fasterrcnn_resnet50_fpn_v2``, with fewer channels."""
    heads = detection.faster_rcnn
    options = {
        "rpn_anchor_generator": anchors(detection, 3),
        "rpn_head": detection.rpn.RPNHead(32, 3, conv_depth=2),
        "box_head": heads.FastRCNNConvFCHead((32, 7, 7), [32, 32], [64], norm_layer=nn.BatchNorm2d),
        "box_predictor": heads.FastRCNNPredictor(64, CLASSES),
    }
    return heads.FasterRCNN(backbone(norm_layer=nn.BatchNorm2d), None, 64, 96, **options, **FEW)


def mask_rcnn_v2(detection: Any) -> nn.Module:
    """The heads of ``maskrcnn_resnet50_fpn_v2``, with fewer channels."""
    heads = detection.mask_rcnn
    options = {
        "rpn_anchor_generator": anchors(detection, 3),
        "box_predictor": detection.faster_rcnn.FastRCNNPredictor(1024, CLASSES),
        "mask_head": heads.MaskRCNNHeads(32, [32, 32], 1, norm_layer=nn.BatchNorm2d),
        "mask_predictor": heads.MaskRCNNPredictor(32, 16, CLASSES),
    }
    return heads.MaskRCNN(backbone(norm_layer=nn.BatchNorm2d), None, 64, 96, **options, **FEW)


def keypoint_rcnn(detection: Any) -> nn.Module:
    heads = detection.keypoint_rcnn
    options = {
        "rpn_anchor_generator": anchors(detection, 3),
        "box_predictor": detection.faster_rcnn.FastRCNNPredictor(1024, CLASSES),
        "keypoint_head": heads.KeypointRCNNHeads(32, (16, 16)),
        "keypoint_predictor": heads.KeypointRCNNPredictor(16, 3),
    }
    return heads.KeypointRCNN(backbone(), None, 64, 96, **options, **FEW)


def retinanet(detection: Any) -> nn.Module:
    return detection.RetinaNet(backbone(), CLASSES, 64, 96, anchor_generator=anchors(detection, 3), **SOME)


def retinanet_v2(detection: Any) -> nn.Module:
    """The head and the levels of ``retinanet_resnet50_fpn_v2``, with fewer channels."""
    from torchvision.ops.feature_pyramid_network import LastLevelP6P7

    norm = partial(nn.GroupNorm, 8)
    head = detection.retinanet.RetinaNetHead(32, 3, CLASSES, norm_layer=norm)
    features = backbone(extra_blocks=LastLevelP6P7(32, 32))
    return detection.RetinaNet(features, CLASSES, 64, 96, anchor_generator=anchors(detection, 4), head=head, **SOME)


def fcos(detection: Any) -> nn.Module:
    generator = anchors(detection, 3)
    generator = detection.anchor_utils.AnchorGenerator(generator.sizes, ((1.0,),) * 3)
    return detection.FCOS(backbone(), CLASSES, 64, 96, anchor_generator=generator, **SOME)


def ssd(detection: Any) -> nn.Module:
    options = {"topk_candidates": 30, "detections_per_img": 20}
    return detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=CLASSES, **options)


def ssd300(detection: Any) -> nn.Module:
    options = {"topk_candidates": 30, "detections_per_img": 20}
    model = detection.ssd300_vgg16(weights=None, weights_backbone=None, num_classes=CLASSES, **options)
    # Instead of 300 x 300: the smallest size for which the last level of features is not empty.
    model.transform.fixed_size = (272, 272)
    # Without normalizations, features are large: scores of 0 and 1 would be equal.
    for module in model.head.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.0004)
    return model


DETECTORS: dict[str, Callable[[Any], nn.Module]] = {
    "faster_rcnn": faster_rcnn,
    "faster_rcnn_v2": faster_rcnn_v2,
    "mask_rcnn": mask_rcnn,
    "mask_rcnn_v2": mask_rcnn_v2,
    "keypoint_rcnn": keypoint_rcnn,
    "retinanet": retinanet,
    "retinanet_v2": retinanet_v2,
    "fcos": fcos,
    "ssd": ssd,
    "ssd300": ssd300,
}
LAST = ("cls_logits", "cls_score", "bbox_pred", "bbox_reg", "classification_head", "regression_head", "mask_fcn_logits")


@pytest.fixture
def detection(monkeypatch: pytest.MonkeyPatch) -> Any:
    import_torchvision()
    from ..translations.torchvision_kernels import make_operators_run

    make_operators_run()
    monkeypatch.setattr("torchvision.extension._has_ops", lambda: True)
    from torchvision.models import detection

    return detection


def prepared(model: nn.Module) -> nn.Module:
    """Set batch norm statistics as in a trained network, and well-separated scores."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.8, 1.2)
        norm.momentum = 1.0
    if norms:
        with torch.no_grad():
            model.backbone.train()(torch.randn(4, 3, 96, 96))
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and name.split(".")[-1] in LAST:
            nn.init.normal_(module.weight, std=0.05)
    return model.eval().requires_grad_(False)


def rows(found: list[Tensor]) -> list[list[Tensor]]:
    return [list(row) for row in zip(*found, strict=True)]


def expect_same_objects(actual: list[Tensor], expected: list[Tensor], *, replaced: int = 0) -> None:
    """Check that the objects are equal, up to the order of those with nearly equal scores.

    Args:
        actual: The tensors of the objects.
        expected: Those of eager torch.
        replaced: How many may be others, as nearly equal scores at the limit of their number are.
    """
    assert [value.shape for value in actual] == [value.shape for value in expected]
    assert [value.dtype for value in actual] == [value.dtype for value in expected]
    left = rows(expected)
    for row in rows(actual):
        match = next(
            (
                index
                for index, other in enumerate(left)
                if all(
                    torch.allclose(one.float(), two.float(), rtol=1e-3, atol=2e-2)
                    for one, two in zip(row, other, strict=True)
                )
            ),
            None,
        )
        if match is None and replaced:
            replaced -= 1
            continue
        assert match is not None, f"no such object: {[value.tolist() for value in row if value.dim() < 2]}"
        del left[match]


SIZES = ((80, 72), (70, 90), (100, 60))


# Their parts are those of Mask R-CNN of version 2, but for the head of keypoints.
CONTAINED = ("faster_rcnn", "faster_rcnn_v2", "mask_rcnn", "keypoint_rcnn")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in CONTAINED else name for name in DETECTORS]
)
def test_images_of_three_sizes(name: str, detection: Any) -> None:
    torch.manual_seed(0)
    model = prepared(DETECTORS[name](detection))
    counts = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        program = fxonnx.export(
            model, ([torch.rand(3, *SIZES[0])],), dynamic_shapes={"images_0": {1: "height", 2: "width"}}
        )
    for index, size in enumerate(SIZES):
        torch.manual_seed(index)
        image = torch.randn(3, *size)
        (expected,) = model([image])
        counts.add(len(expected["boxes"]))
        (found,) = program.unflatten(program([image]))
        assert list(found) == list(expected)
        expect_same_objects(list(found.values()), list(expected.values()))
    assert max(counts) > 3


def test_no_boxes(detection: Any) -> None:
    torch.manual_seed(0)
    model = prepared(faster_rcnn(detection))
    model.roi_heads.score_thresh = 2.0
    image = torch.rand(3, 80, 72)
    program = fxonnx.export(model, ([image],))
    (expected,) = model([image])
    assert len(expected["boxes"]) == 0
    assert [value.shape for value in program([image])] == [value.shape for value in expected.values()]


class Nms(nn.Module):
    def forward(self, boxes: Tensor, scores: Tensor, classes: Tensor) -> Tensor:
        from torchvision.ops import boxes as box_ops

        return box_ops.batched_nms(boxes, scores, classes, 0.4)


@pytest.mark.parametrize("count", [0, 1, 7, 40, 1200])
def test_nms_by_class(count: int, detection: Any) -> None:
    def example(size: int) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(size)
        corners = torch.rand(size, 2) * 30
        boxes = torch.cat([corners, corners + torch.rand(size, 2) * 20], 1)
        return boxes, torch.rand(size), torch.randint(0, 3, (size,))

    program = fxonnx.export(Nms().eval(), example(12), dynamic_shapes={"*": {0: "boxes"}})
    given = example(count)
    assert torch.equal(program(*given)[0], Nms()(*given))


class Keypoints(nn.Module):
    def forward(self, maps: Tensor, regions: Tensor) -> tuple[Tensor, Tensor]:
        from torchvision.models.detection import roi_heads

        return roi_heads.heatmaps_to_keypoints(maps, regions)


@pytest.mark.parametrize("count", [0, 1, 9])
def test_keypoints_of_regions(count: int, detection: Any) -> None:
    def example(size: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(size)
        corners = torch.rand(size, 2) * 30
        # Smaller than a pixel up to 40 pixels.
        return torch.randn(size, 3, 14, 14), torch.cat([corners, corners + torch.rand(size, 2) ** 3 * 40], 1)

    program = fxonnx.export(Keypoints().eval(), example(5), dynamic_shapes=({0: "regions"}, {0: "regions"}))
    given = example(count)
    for found, expected in zip(program(*given), Keypoints()(*given), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_torchvision_is_restored(detection: Any) -> None:
    from torchvision.models.detection import _utils, transform
    from torchvision.ops import boxes, poolers

    owners = [
        (boxes, "batched_nms"),
        (poolers, "_infer_scale"),
        (transform, "_resize_image_and_masks"),
        (_utils.BoxCoder, "decode"),
    ]
    before = [getattr(owner, name) for owner, name in owners]
    fxonnx.export(Nms().eval(), (torch.rand(3, 4), torch.rand(3), torch.zeros(3)))
    assert [getattr(owner, name) for owner, name in owners] == before
