"""A decoder in ONNX Runtime that checks the tokens which its head for multi-token prediction (MTP) has drafted."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, MellumConfig, PreTrainedTokenizerFast, set_seed

import fxonnx.genai


class Step:
    """A file with a cache, of the decoder or of its head."""

    def __init__(self, path: Path) -> None:
        self.session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.inputs = {value.name: value for value in self.session.get_inputs()}
        self.outputs = [value.name for value in self.session.get_outputs()]
        caches = {name: value.shape for name, value in self.inputs.items() if name.startswith("past_key_values.")}
        self.cache = {name: np.zeros([1, shape[1], 0, shape[3]], np.float32) for name, shape in caches.items()}
        self.length = 0

    def __call__(self, tokens: list[int], first: int, **more: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits and hidden states of tokens, the first of which is at a position of the text."""
        self.length += len(tokens)
        positions = np.arange(first, first + len(tokens))[None]
        feeds = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, self.length), np.int64)}
        feeds |= {"position_ids": positions, **self.cache, **more}
        found = self.session.run(None, {name: feeds[name] for name in self.inputs})
        outputs = dict(zip(self.outputs, found, strict=True))
        self.cache = {name: outputs[name.replace("past_key_values", "present")] for name in self.cache}
        return outputs["logits"], outputs["hidden_states"]

    def forget(self, length: int) -> None:
        """Keep the keys and values of so many tokens only."""
        self.cache = {name: value[:, :, :length] for name, value in self.cache.items()}
        self.length = length


def generate(directory: Path, tokens: list[int], new: int) -> tuple[list[int], list[int]]:
    """Generate tokens greedily; return all of them, and the drafts."""
    decoder, head = Step(directory / "model.onnx"), Step(directory / "mtp_0.onnx")
    end, drafts, draft = len(tokens) + new, [], []
    while len(tokens) < end:
        # The decoder takes the tokens that it has not seen, and the draft of the one after them.
        first = decoder.length
        logits, states = decoder(tokens[first:] + draft, first)
        choices = logits[0, len(tokens) - first - 1 :].argmax(-1).tolist()
        is_right = draft == choices[: len(draft)]
        tokens = tokens + (choices if is_right else choices[:1])
        decoder.forget(len(tokens) - 1)
        # The head takes the hidden states of tokens, each with the token after it.
        after = tokens[head.length + 1 :]
        logits, _ = head(after, head.length + 1, last_hidden_states=states[:, : len(after)])
        draft = [int(logits[0, -1].argmax())]
        drafts += draft
    return tokens[:end], drafts


def make_checkpoint(directory: Path) -> None:
    """A small checkpoint with random weights and a head, as that of a training run."""
    set_seed(0)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    layers = {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"], "num_mtp_layers": 1}
    config = MellumConfig(vocab_size=100, **layers, **experts, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    weights = load_file(directory / "model.safetensors")
    layer = {name: value for name, value in weights.items() if name.startswith("model.layers.1.")}
    weights |= {name.replace("model.layers.1.", "mtp.layers.0."): value.clone() for name, value in layer.items()}
    weights |= {
        f"mtp.{name}.weight": torch.ones(64) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    }
    weights["mtp.fc.weight"] = torch.randn(64, 128) * 0.1
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    vocabulary = {chr(32 + index): index for index in range(95)} | {f"<{index}>": index for index in range(95, 100)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<95>", eos_token="<96>").save_pretrained(directory)


if __name__ == "__main__":
    make_checkpoint(Path("checkpoint"))
    # The decoder has to return the logits of all tokens, since it checks several in one step.
    path = fxonnx.genai.export("checkpoint", "out", mtp=True, last_logits=False, chat_template=False)
    print(sorted(file.name for file in path.iterdir()))
    found, drafts = generate(path, [5, 6, 7, 8], 16)
    model = AutoModelForCausalLM.from_pretrained("checkpoint")
    expected = model.generate(torch.tensor([[5, 6, 7, 8]]), max_new_tokens=16, do_sample=False, eos_token_id=None)
    print(f"{len(drafts)} drafts of 16 tokens: {found}")
    assert found == expected[0].tolist()
