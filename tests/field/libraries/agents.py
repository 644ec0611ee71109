"""Agents, detectors, voices, and forecasts that were trained before."""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ..row import Model, make, models, randint, randn, row
from ..samples import HW, pictures

_BATCH = {0: "batch"}


def _ultralytics(name: str, task: str = "DetectionModel") -> Model:
    """A network as its own export prepares it: fused, and with decoded boxes."""
    os.environ["YOLO_OFFLINE"] = "true"
    model = make(f"ultralytics.nn.tasks.{task}", f"{name}.yaml", ch=3, nc=5, verbose=False).eval().fuse(verbose=False)
    for part in model.modules():
        if hasattr(part, "export"):
            part.export, part.dynamic, part.format = True, True, "onnx"
    return Model(model, [(pictures(*size),) for size in ((1, 64, 64), (2, 96, 64), (1, 128, 160))], (HW,))


ULTRALYTICS = models(
    "ultralytics",
    {
        "yolo11n": partial(_ultralytics, "yolo11n"),
        "yolo12n": partial(_ultralytics, "yolo12n"),
        "yolo26n": partial(_ultralytics, "yolo26n"),
        "yolo26n-cls": partial(_ultralytics, "yolo26n-cls", "ClassificationModel"),
        "yolo26n-obb": partial(_ultralytics, "yolo26n-obb", "OBBModel"),
        "yolo26n-pose": partial(_ultralytics, "yolo26n-pose", "PoseModel"),
        "yolo26n-seg": partial(_ultralytics, "yolo26n-seg", "SegmentationModel"),
        "yolov10n": partial(_ultralytics, "yolov10n"),
        "yolov3-tiny": partial(_ultralytics, "yolov3-tiny"),
        "yolov5n": partial(_ultralytics, "yolov5n"),
        "yolov8n": partial(_ultralytics, "yolov8n"),
    },
)


def _torchrl(path: str, *shapes: tuple[int, ...], **options: Any) -> Model:
    """A network of observations, with a batch of each."""
    calls = [tuple(randn(n, *shape, seed=number) for number, shape in enumerate(shapes)) for n in (3, 1, 7)]
    return Model(make(f"torchrl.modules.{path}", **options), calls, (_BATCH,) * len(shapes))


_CELLS: dict[str, Any] = {"num_cells": [16, 16]}


def _actor() -> Model:
    """The most likely action of a policy that reads and writes dictionaries of tensors."""
    modules, dictionaries = import_module("torchrl.modules"), import_module("tensordict.nn")
    network = nn.Sequential(modules.MLP(in_features=8, out_features=8, **_CELLS), dictionaries.NormalParamExtractor())
    module = dictionaries.TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"])
    actor = modules.ProbabilisticActor(module, in_keys=["loc", "scale"], distribution_class=modules.TanhNormal)

    def act(model: Any, x: torch.Tensor) -> Any:
        with dictionaries.set_interaction_type(dictionaries.InteractionType.DETERMINISTIC):
            return model(import_module("tensordict").TensorDict({"observation": x}, batch_size=x.shape[:1]))["action"]

    return Model(actor, [(randn(n, 8),) for n in (3, 1, 7)], (_BATCH,), call=act)


def _decision_transformer() -> Model:
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_inner": 32, "activation": "relu", "n_positions": 64}
    config = {**sizes, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
    model = make("torchrl.modules.OnlineDTActor", 4, 2, transformer_config=config)
    calls = [(randn(b, t, 4), randn(b, t, 2), randn(b, t, 1)) for b, t in ((2, 5), (3, 9), (1, 3))]
    return Model(model, calls, ({0: "batch", 1: "time"},) * 3)


TORCHRL = models(
    "torchrl",
    {
        "ConvNet": partial(_torchrl, "ConvNet", (3, 32, 32), in_features=3, num_cells=[8, 8], kernel_sizes=3, strides=2),
        "DdpgMlpActor": partial(_torchrl, "DdpgMlpActor", (8,), action_dim=2, mlp_net_kwargs={"in_features": 8, **_CELLS}),
        "MultiAgentMLP": partial(
            _torchrl, "MultiAgentMLP", (3, 8), n_agent_inputs=8, n_agent_outputs=4, n_agents=3, centralized=False, share_params=False, depth=1,
            num_cells=16,
        ),
        "ObsEncoder": partial(_torchrl, "ObsEncoder", (3, 64, 64), channels=8, in_channels=3),
        "OnlineDTActor": _decision_transformer,
        "ProbabilisticActor": _actor,
        "QMixer": partial(_torchrl, "QMixer", (3, 1), (6,), state_shape=(6,), mixing_embed_dim=8, n_agents=3, device="cpu"),
    },
)  # fmt: skip


@row("bigvgan")
def vocoder() -> Model:
    from bigvgan.bigvgan import BigVGAN
    from bigvgan.env import AttrDict

    settings = AttrDict(
        **{"num_mels": 20, "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4], "upsample_initial_channel": 32},
        **{"resblock": "1", "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]]},
        **{"activation": "snakebeta", "snake_logscale": True},
    )
    calls = [(randn(b, 20, t),) for b, t in ((1, 12), (2, 19), (1, 7))]
    return Model(BigVGAN(settings), calls, ({0: "batch", 2: "frames"},))


@row("effdet")
def efficientdet_d0() -> Model:
    from effdet import EfficientDet, get_efficientdet_config

    config = get_efficientdet_config("efficientdet_d0")
    config.backbone_name, config.image_size, config.fpn_cell_repeats, config.box_class_repeats = (
        "mobilenetv3_small_050",
        (128, 128),
        1,
        1,
    )
    model = EfficientDet(config, pretrained_backbone=False)
    return Model(model, [(pictures(batch, 128, 128),) for batch in (1, 2, 3)], (_BATCH,))


@row("timesfm")
def core_of_timesfm() -> Model:
    """Two of its layers."""
    model = make("timesfm.timesfm_2p5.timesfm_2p5_torch.TimesFM_2p5_200M_torch_module")
    del model.stacked_xf[2:]
    model.x = 2
    calls = [(randn(b, p, 32), torch.zeros(b, p, 32, dtype=torch.bool)) for b, p in ((2, 4), (3, 7), (1, 3))]
    return Model(model, calls, ({0: "batch", 1: "patches"},) * 2)


@row("chronos-forecasting")
def chronos_2() -> Model:
    from chronos.chronos2.config import Chronos2CoreConfig
    from chronos.chronos2.model import Chronos2Model

    config = Chronos2CoreConfig(
        **{"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2},
        chronos_config={
            **{"context_length": 64, "output_patch_size": 8, "input_patch_size": 8, "input_patch_stride": 8},
            **{"quantiles": [0.1, 0.5, 0.9], "use_reg_token": True, "use_arcsinh": True, "max_output_patches": 4},
            **{"time_encoding_scale": 64},
        },
    )

    def call(model: Any, context: torch.Tensor, groups: torch.Tensor) -> Any:
        return model(context, group_ids=groups, num_output_patches=2).quantile_preds

    calls = [(randn(b, t).cumsum(1), torch.arange(b) // 2) for b, t in ((3, 48), (4, 64), (1, 37))]
    return Model(Chronos2Model(config), calls, ({0: "batch", 1: "time"}, _BATCH), call=call)


def _measure(path: str, *kinds: str, **options: Any) -> Model:
    """A measure of torchmetrics, as the function of a batch."""
    made = {
        "numbers": lambda n, seed: randn(n, seed=seed),
        "scores": lambda n, seed: randn(n, 5, seed=seed),
        "classes": lambda n, seed: randint(5, n, seed=seed),
        "sounds": lambda n, seed: randn(n, 400, seed=seed),
        "pictures": lambda n, seed: pictures(n, 32, 40) * (1 - seed / 10),
    }
    module, _, name = path.rpartition(".")
    function = getattr(
        import_module(f"torchmetrics.functional.{module}" if module else "torchmetrics.functional"), name
    )
    calls = [tuple(made[kind](n, seed) for seed, kind in enumerate(kinds)) for n in (12, 7, 20)]
    return Model(nn.Identity(), calls, (_BATCH,) * len(kinds), call=lambda _, *inputs: function(*inputs, **options))


_FIVE = {"num_classes": 5, "validate_args": False}

TORCHMETRICS = models(
    "torchmetrics",
    {
        "confusion_matrix": partial(
            _measure, "classification.multiclass_confusion_matrix", "scores", "classes", **_FIVE
        ),
        "error_relative_global": partial(
            _measure, "image.error_relative_global_dimensionless_synthesis", "pictures", "pictures"
        ),
        "explained_variance": partial(_measure, "explained_variance", "numbers", "numbers"),
        "f1_score": partial(_measure, "classification.multiclass_f1_score", "scores", "classes", **_FIVE),
        "pearson": partial(_measure, "pearson_corrcoef", "numbers", "numbers"),
        "peak_signal_noise_ratio": partial(
            _measure, "image.peak_signal_noise_ratio", "pictures", "pictures", data_range=1.0
        ),
        "r2_score": partial(_measure, "r2_score", "numbers", "numbers"),
        "scale_invariant_distortion": partial(
            _measure, "audio.scale_invariant_signal_distortion_ratio", "sounds", "sounds"
        ),
        "spearman": partial(_measure, "spearman_corrcoef", "numbers", "numbers"),
        "spectral_angle_mapper": partial(_measure, "image.spectral_angle_mapper", "pictures", "pictures"),
        "structural_similarity": partial(
            _measure, "image.structural_similarity_index_measure", "pictures", "pictures", data_range=1.0
        ),
        "total_variation": partial(_measure, "image.total_variation", "pictures"),
        "universal_image_quality": partial(_measure, "image.universal_image_quality_index", "pictures", "pictures"),
    },
)
