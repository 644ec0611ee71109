"""CPU seconds of exports with dynamic and with static image sizes: ``python -m benchmarks.dynamic_sizes``."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

import fxonnx
from tests.models.torchvision_shim import import_torchvision


def _segformer() -> torch.nn.Module:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return SegformerForSemanticSegmentation(SegformerConfig())


def _timm(name: str) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, features_only=True)

    return build


def _deeplab() -> torch.nn.Module:
    from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

    return deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None)


MODELS: Mapping[str, Callable[[], torch.nn.Module]] = MappingProxyType(
    {
        "segformer": _segformer,
        "tf_mobilenetv3_small_minimal_100": _timm("tf_mobilenetv3_small_minimal_100"),
        "tf_efficientnet_b0": _timm("tf_efficientnet_b0"),
        "deeplabv3_mobilenet_v3_large": _deeplab,
    }
)


def _seconds(name: str, *, dynamic: bool) -> float:
    """CPU seconds of the first export of a model in a process that has only imported the exporter and torch's."""
    import_torchvision()
    warnings.simplefilter("ignore")
    fxonnx.export(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),))
    model = MODELS[name]().eval()
    start = time.process_time()
    shapes = ({0: "batch", 2: "height", 3: "width"},) if dynamic else None
    fxonnx.export(model, (torch.rand(1, 3, 64, 64),), dynamic_shapes=shapes)
    return time.process_time() - start


def main() -> None:
    """Print a row per model. Each export has a process of its own, since torch and sympy cache what they computed."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in MODELS:
            static, dynamic = (pool.apply(_seconds, (name,), {"dynamic": dynamic}) for dynamic in (False, True))
            print(f"{name:36} static {static:6.2f}  dynamic {dynamic:6.2f}  ratio {dynamic / static:5.1f}", flush=True)


if __name__ == "__main__":
    main()
