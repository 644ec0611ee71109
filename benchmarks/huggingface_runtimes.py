"""Directories of ``fxonnx.huggingface.export`` in optimum's and sentence-transformers' runtimes, compared with torch.

    make optimum-runtimes
    python -m benchmarks.huggingface_runtimes [--json runtimes.json]

optimum-onnx needs transformers 4.57, and therefore the environment of ``make optimum``. Models are small, with random
weights; generation has 12 new tokens of a padded batch, greedily.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from optimum import onnxruntime as optimum
from sentence_transformers import SentenceTransformer, models

import fxonnx.huggingface
from fxonnx._transformers.tasks import TASKS
from tests.genai.small_models import make_tokenizer
from tests.huggingface.small_models import make_model
from tests.huggingface.small_pipelines import PIPELINES, images
from tests.huggingface.small_pipelines import make as make_pipeline

from ._output import write_json

IDS = torch.tensor([[11, 23, 35, 47, 59, 71], [0, 0, 107, 119, 17, 29]])
TEXT = {"input_ids": IDS, "attention_mask": (IDS != 0).to(torch.int64)}
IMAGES = {"pixel_values": torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))}
AUDIO = {"input_values": torch.randn(2, 6000, generator=torch.Generator().manual_seed(0))}
GREEDY: Mapping[str, Any] = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "num_beams": 1}

CASES: Mapping[str, tuple[str, str, str, Mapping[str, torch.Tensor]]] = {
    "text-classification": ("bert", "text-classification", "ORTModelForSequenceClassification", TEXT),
    "token-classification": ("roberta", "token-classification", "ORTModelForTokenClassification", TEXT),
    "question-answering": ("distilbert", "question-answering", "ORTModelForQuestionAnswering", TEXT),
    "fill-mask": ("bert", "fill-mask", "ORTModelForMaskedLM", TEXT),
    "feature-extraction": ("mpnet", "feature-extraction", "ORTModelForFeatureExtraction", TEXT),
    "image-classification": ("vit", "image-classification", "ORTModelForImageClassification", IMAGES),
    "semantic-segmentation": ("segformer", "semantic-segmentation", "ORTModelForSemanticSegmentation", IMAGES),
    "speech (CTC)": ("wav2vec2", "automatic-speech-recognition", "ORTModelForCTC", AUDIO),
    "audio-classification": ("hubert", "audio-classification", "ORTModelForAudioClassification", AUDIO),
    "generation, llama": ("llama", "text-generation", "ORTModelForCausalLM", TEXT),
    "generation, gpt2": ("gpt2", "text-generation", "ORTModelForCausalLM", TEXT),
    "generation, qwen3": ("qwen3", "text-generation", "ORTModelForCausalLM", TEXT),
    "generation, t5": ("t5", "text2text-generation", "ORTModelForSeq2SeqLM", TEXT),
    "generation, bart": ("bart", "text2text-generation", "ORTModelForSeq2SeqLM", TEXT),
    "generation, whisper": ("whisper", "automatic-speech-recognition", "ORTModelForSpeechSeq2Seq", {}),
}


def compared(name: str) -> str:
    """``equal``, or the difference of a case."""
    model_type, task, loader, inputs = CASES[name]
    model = make_model(model_type, TASKS[task])
    if model_type == "whisper":
        inputs = {"input_features": torch.randn(2, 80, 3000, generator=torch.Generator().manual_seed(0))}
    given = {key: value for key, value in inputs.items() if key != "token_type_ids"}
    with tempfile.TemporaryDirectory() as directory:
        fxonnx.huggingface.export(model, directory, task=task, processor=make_tokenizer(), verify=False)
        loaded = getattr(optimum, loader).from_pretrained(directory)
        if model.can_generate():
            expected, found = (each.generate(**given, **GREEDY) for each in (model, loaded))
            return "equal" if torch.equal(expected, found) else f"tokens differ: {found.tolist()} {expected.tolist()}"
        with torch.no_grad():
            return _difference(model(**given), loaded(**given))


def _difference(expected: Any, found: Any) -> str:
    names = [key for key, value in found.items() if isinstance(value, torch.Tensor)]
    largest = max(float((expected[name] - found[name]).abs().max() / expected[name].abs().max()) for name in names)
    return "equal" if largest < 1e-4 else f"differs by {largest:.1e}"


def pipelines(name: str) -> str:
    """``equal``, or the difference of the images of a pipeline of Diffusers."""
    pipeline = make_pipeline(name, **PIPELINES[name])
    expected = images(pipeline, name)
    with tempfile.TemporaryDirectory() as directory:
        fxonnx.huggingface.export(pipeline, directory, verify=False)
        loaded = getattr(optimum, f"ORT{name}").from_pretrained(directory)
        found = images(loaded, name)
    largest = float((found - expected).abs().max())
    return "equal" if largest < 1e-4 else f"differs by {largest:.1e}"


def sentences() -> str:
    """``equal``, or the difference of embeddings of sentence-transformers."""
    from transformers import BertConfig, BertModel

    texts = ["the quick brown fox", "a language model predicts the next token of a text"]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, out = Path(folder, "checkpoint"), Path(folder, "out")
        config = BertConfig(
            vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
        )
        BertModel(config).eval().save_pretrained(Path(folder, "bert"))
        make_tokenizer().save_pretrained(Path(folder, "bert"))
        transformer = models.Transformer(str(Path(folder, "bert")))
        original = SentenceTransformer(modules=[transformer, models.Pooling(32), models.Normalize()])
        original.save(str(checkpoint))
        fxonnx.huggingface.export(
            checkpoint, out, task="feature-extraction", layout="sentence-transformers", verify=False
        )
        loaded = SentenceTransformer(str(out), backend="onnx")
        expected, found = (torch.as_tensor(each.encode(texts)) for each in (original, loaded))
    difference = float((expected - found).abs().max())
    return "equal" if difference < 1e-5 else f"differs by {difference:.1e}"


def main() -> None:
    """Print the table, and write it on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    jobs: dict[str, Callable[[], str]] = {name: lambda name=name: compared(name) for name in CASES}
    jobs |= {name: lambda name=name: pipelines(name) for name in PIPELINES if hasattr(optimum, f"ORT{name}")}
    jobs['SentenceTransformer(backend="onnx")'] = sentences
    rows = []
    for name, job in jobs.items():
        try:
            result = job()
        except Exception as error:  # noqa: BLE001 - a result of the table
            result = f"error: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
        rows.append({"case": name, "result": result})
        print(name, result, sep=": ", flush=True)
    if arguments.json:
        write_json(str(arguments.json), {"rows": rows})


if __name__ == "__main__":
    main()
