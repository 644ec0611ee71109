"""A decoder step with a key-value cache: the outputs of one step are inputs of the next."""

import torch
from torch import nn

import fxonnx


class DecoderStep(nn.Module):
    """Self-attention of one new token to all tokens so far."""

    def __init__(self, vocabulary: int = 32, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.project = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, vocabulary)

    def forward(
        self, token: torch.Tensor, cache: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        query, key, value = self.project(self.embed(token)).chunk(3, dim=-1)
        cache = {"key": torch.cat([cache["key"], key], 1), "value": torch.cat([cache["value"], value], 1)}
        attended = nn.functional.scaled_dot_product_attention(query, cache["key"], cache["value"])
        return self.head(attended), cache


model = DecoderStep().eval()
token, past = torch.tensor([[1]]), {name: torch.rand(1, 3, 16) for name in ("key", "value")}
shapes = {"token": {0: "batch"}, "cache.*": {0: "batch", 1: "past"}}
program = fxonnx.export(model, (token, past), dynamic_shapes=shapes, verify=True)

cache = {name: torch.zeros(1, 0, 16) for name in past}
for _ in range(5):
    logits, cache = program.unflatten(program(token, cache))
    token = logits.argmax(-1)
    print(token.item(), tuple(cache["key"].shape))
