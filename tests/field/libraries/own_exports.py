"""The exports to ONNX that libraries have themselves, after ``fxonnx.install()``."""

from __future__ import annotations

import torch
from torch import nn

from ..row import Model, randn, row
from ..samples import pictures


@row("python-doctr")
def own_export_of_doctr() -> Model:
    from doctr.models.classification import mobilenet_v3_small
    from doctr.models.utils import export_model_to_onnx

    model = mobilenet_v3_small(pretrained=False, num_classes=5)
    calls = [(pictures(b, 32, 32),) for b in (1, 3, 2)]

    def export(path: str) -> str:
        return str(export_model_to_onnx(model, path.removesuffix(".onnx"), dummy_input=calls[0][0]))

    return Model(model, calls, ({0: "batch_size"},), own_export=export)


@row("pytorch-lightning")
def own_export_of_lightning() -> Model:
    import pytorch_lightning

    class Classifier(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    model = Classifier()
    calls = [(randn(n, 8),) for n in (2, 1, 5)]
    return Model(
        *(model, calls, ({0: "batch"},)),
        own_export=lambda path: model.to_onnx(path, calls[0], dynamo=True, dynamic_shapes=({0: "batch"},)),
    )
