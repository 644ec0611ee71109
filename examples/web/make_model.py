"""Export a model of transformers for the page in this folder.

    python make_model.py                 # a small classifier of texts with random weights
    python make_model.py checkpoint      # a directory with a model of transformers for texts

The files are written to ``models/``.
"""

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, set_seed

import fxonnx.huggingface


def make_checkpoint(directory: Path) -> Path:
    """Save a small BERT with random weights and its tokenizer."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<pad>", "<s>", "</s>"], initial_alphabet=alphabet)
    bpe.train_from_iterator(["the quick brown fox jumps over the lazy dog"], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<pad>", model_max_length=128)
    tokenizer.save_pretrained(directory)
    set_seed(0)
    labels = {0: "sunny", 1: "cloudy", 2: "rainy"}
    config = BertConfig(
        vocab_size=300,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=128,
        initializer_range=0.3,
        id2label=labels,
        label2id={label: index for index, label in labels.items()},
    )
    BertForSequenceClassification(config).save_pretrained(directory)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description="Export a model of transformers for the page in this folder.")
    parser.add_argument("checkpoint", nargs="?", type=Path, help="the model; by default a small one is made")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "models")
    arguments = parser.parse_args()
    checkpoint = arguments.checkpoint or make_checkpoint(arguments.output / "checkpoint")
    dtypes = ["fp32", "q8", "q4"]
    exported = fxonnx.huggingface.export(
        checkpoint,
        arguments.output / "exported",
        layout="transformers.js",
        dtype=dtypes,
        target="onnxruntime-web-webgpu",
    )
    (arguments.output / "model.json").write_text(json.dumps({"task": exported.task, "dtypes": dtypes}))
    print(exported)


if __name__ == "__main__":
    main()
