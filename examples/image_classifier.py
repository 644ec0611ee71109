"""An image classifier with residual blocks, for images of any size, optimized for ONNX Runtime."""

import torch
from torch import nn

import fxonnx


class Block(nn.Module):
    """Two convolutions with batch norm, and a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(y)))


stem = (nn.Conv2d(3, 16, 7, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2))
head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10), nn.Softmax(-1))
model = nn.Sequential(*stem, Block(16), Block(16), *head).eval()

program = fxonnx.export(
    model,
    (torch.rand(2, 3, 64, 64),),
    "classifier.onnx",
    input_names=["images"],
    dynamic_shapes={"images": {0: "batch", 2: "height", 3: "width"}},
    target="onnxruntime",
)
images = torch.rand(1, 3, 96, 128)
torch.testing.assert_close(program(images)[0], model(images))
print(program)  # batch norm is folded into the convolutions
