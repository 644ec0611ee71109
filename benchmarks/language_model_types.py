"""All types of transformers that generate text: tokens of small models with random weights.

    python -m benchmarks.language_model_types [--class AutoModelForSeq2SeqLM] [--types llama,gemma2] [--missing]

Each type is exported in a process of its own, without the comparison of the export. Then 24 greedy tokens are compared
with ``generate`` of transformers for each prompt alone: one prompt, a batch of prompts of one length, prompts
of unequal lengths, and the same beyond the windows of the configuration. Where any differ, the export is repeated with
its comparison. Types that read images, audio or a source text have cases of their own: benchmarks/_multimodal_runs.py.
Results go to benchmarks/results/language_model_types.json, from which --page writes the tables of
docs/reference/language-model-types.md; a run of some types replaces their rows only.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import re
import resource
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import torch

import fxonnx.genai
from fxonnx import ExportError
from tests.genai.small_models import make_tokenizer, prompt

from ._language_model_configs import PARTS_OF_OTHERS, all_types, make_type
from ._multimodal_configs import CLASSES, make_multimodal, multimodal_types
from ._multimodal_runs import NEW, Problems, are_equally_good, compare_images, compare_sources, compare_whisper

__all__ = ["CASES", "CAUSAL", "PAGE", "RESULTS", "page", "result_of", "types_of"]

Row: TypeAlias = dict[str, Any]

RESULTS = Path(__file__).parent / "results" / "language_model_types.json"
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "language-model-types.md"

CAUSAL = "AutoModelForCausalLM"
_CLASSES = (CAUSAL, *CLASSES)
CASES: Mapping[str, Sequence[int]] = {
    "one prompt": (6,),
    "batch": (6, 6, 6),
    "unequal lengths": (5, 8, 3),
    "long prompt": (70,),
    "long prompts of unequal lengths": (40, 21, 33),
}
"""Name of a case to the lengths of its prompts; all windows of the configurations are of 8 tokens."""

_SECONDS, _BYTES = 300, 14 << 30
_ONE_PROMPT, _UNEQUAL = "the model takes one prompt at a time", "prompts of unequal lengths"
_ORDER = ("right", "one prompt at a time", "error", "raw error", "wrong", "not a model of its own")


def types_of(auto_class: str) -> list[str]:
    """The types of a class of transformers."""
    return all_types() if auto_class == CAUSAL else multimodal_types(auto_class)


def result_of(model_type: str, auto_class: str = CAUSAL) -> Row:
    """Export a small model of a type and compare its tokens."""
    if model_type in PARTS_OF_OTHERS:
        return {"result": "not a model of its own", "reason": PARTS_OF_OTHERS[model_type]}
    try:
        model = make_type(model_type) if auto_class == CAUSAL else make_multimodal(auto_class, model_type)
    except Exception as error:  # noqa: BLE001 - a result of the table
        return {"result": "raw error", "reason": f"the small model does not run: {_line(error)}"}
    row: Row = {}
    for verify in (False, True):
        row = _exported(model, verify, auto_class)
        if verify and row["result"] == "error":
            row["reason"] = f"with the comparison: {row['reason']}"
        if row["result"] != "wrong":
            break
    return row


def _exported(model: Any, verify: bool, auto_class: str) -> Row:
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        notes: list[str] = []
        refusal = ""
        try:
            try:
                _export(model, directory, verify, text_only=False)
            except ExportError as error:
                refusal = _line(error)
                if "text_only=True" not in str(error) or next(model.parameters()).is_meta:
                    raise
                notes.append("text_only")
                _export(model, directory, verify, text_only=True)
        except ExportError as error:
            return {"result": "error", "reason": refusal or _line(error)}
        except Exception as error:  # noqa: BLE001 - a result of the table
            return {"result": "raw error", "reason": _line(error)}
        texts = [str(each.message) for each in caught]
        takes_one = any(_ONE_PROMPT in text for text in texts)
        needs_one_length = any(_UNEQUAL in text for text in texts)
        if needs_one_length and not takes_one:
            notes.append("or prompts of one length")
        notes += [_short(text) for text in texts if "valid only" in text]
        cases = {
            name: lengths
            for name, lengths in CASES.items()
            if len(lengths) == 1 or not (takes_one or (needs_one_length and len({*lengths}) > 1))
        }
        problems, distinct = _compare(model, Path(directory), cases)
    result = "wrong" if problems else "one prompt at a time" if needs_one_length else "right"
    row: Row = {"result": result, "distinct": distinct}
    if auto_class != CAUSAL and not problems and "text_only" in notes:
        # Its images or audio are what the class is for.
        return row | {"result": "error", "reason": refusal, "notes": notes}
    return row | ({"reason": "; ".join(problems)} if problems else {}) | ({"notes": notes} if notes else {})


def _export(model: Any, directory: str, verify: bool, text_only: bool) -> None:
    fxonnx.genai.export(model, directory, tokenizer=make_tokenizer(), verify=verify, text_only=text_only)


def _compare(model: Any, directory: Path, cases: Mapping[str, Sequence[int]]) -> Problems:
    if (directory / "vision.onnx").exists():
        return compare_images(model, directory)
    if (directory / "audio_processor_config.json").exists():
        return compare_whisper(model, directory)
    if (directory / "encoder.onnx").exists():
        return compare_sources(model, directory)
    return _compare_prompts(model, directory, cases)


def _compare_prompts(model: Any, directory: Path, cases: Mapping[str, Sequence[int]]) -> Problems:
    """Compare the tokens of a decoder from prompts of some lengths."""
    import onnxruntime_genai as og

    loaded = og.Model(str(directory))
    problems, seen = [], set()
    for name, lengths in cases.items():
        prompts = [prompt(len(lengths), max(lengths))[row, :length] for row, length in enumerate(lengths)]
        expected = [_continued(model, each) for each in prompts]
        seen |= {token for row in expected for token in row}
        try:
            found = _generated(og, loaded, prompts)
        except RuntimeError as error:
            problems.append(f"{name} does not run: {_line(error)}")
            continue
        rows = zip(prompts, found, expected, strict=True)
        if not all(are_equally_good(model, {"input_ids": ids[None]}, "input_ids", *tokens) for ids, *tokens in rows):
            problems.append(f"{name}: other tokens")
    return problems, len(seen)


def _generated(og: Any, model: Any, prompts: Sequence[torch.Tensor]) -> list[list[int]]:
    longest = max(map(len, prompts))
    parameters = og.GeneratorParams(model)
    length = longest + NEW
    parameters.set_search_options(do_sample=False, batch_size=len(prompts), min_length=length, max_length=length)
    generator = og.Generator(model, parameters)
    ids = torch.nn.utils.rnn.pad_sequence([*prompts], batch_first=True)  # on the right, with 0
    generator.append_tokens(ids.to(torch.int32).numpy())
    while not generator.is_done():
        generator.generate_next_token()
    return [[int(token) for token in generator.get_sequence(row)[longest:]] for row in range(len(prompts))]


def _continued(model: Any, ids: torch.Tensor) -> list[int]:
    tokens = model.generate(
        ids[None], attention_mask=torch.ones_like(ids[None]), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False
    )
    return [int(token) for token in tokens[0, len(ids) :]]


def _short(text: str) -> str:
    """One line, without the directories of libraries."""
    return re.sub(r"[^\s(]*/site-packages/", "", " ".join(text.split()))


def _line(error: BaseException) -> str:
    text = _short(str(error)).partition(", only ")[0]  # without the list of all others
    return text if isinstance(error, ExportError) else f"{type(error).__name__}: {text[:300]}"


def _child(model_type: str, auto_class: str, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    try:
        sender.send(result_of(model_type, auto_class))
    except Exception as error:  # noqa: BLE001 - a result of the table
        sender.send({"result": "raw error", "reason": _line(error)})


def _in_process(model_type: str, auto_class: str) -> Row:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(model_type, auto_class, sender))
    process.start()
    sender.close()
    try:
        if receiver.poll(_SECONDS):
            return dict(receiver.recv())
        reason = f"longer than {_SECONDS} seconds"
    except EOFError:
        process.join()
        reason = f"the process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()
    return {"result": "raw error", "reason": reason}


def page(results: Mapping[str, Mapping[str, Row]]) -> str:
    """The page of docs with the tables of results."""
    return _INTRODUCTION + "".join(
        f"\n## {name}\n\n{_SECTIONS[name].format(types=len(results[name]))}\n\n{_table(results[name])}"
        for name in _CLASSES
    )


_INTRODUCTION = """# Model types of `fxonnx genai`

Small models with random weights of all types of transformers 5.23 that generate text, exported by `fxonnx.genai.export`
without its comparison. Then 24 greedy tokens are compared with `generate` of transformers for each prompt alone. Where
tokens differ, or the exported model does not run, the export is repeated with its comparison.

`python -m benchmarks.language_model_types --page` writes this page, and tests/genai/test_types.py compares rows with
new exports.
"""
_SECTIONS: Mapping[str, str] = {
    CAUSAL: """The {types} types of decoders, in onnxruntime-genai 0.18: one prompt, a batch, prompts of unequal
lengths, and the same beyond the window of the configuration, which has 8 tokens where the type has one.""",
    "AutoModelForMultimodalLM": """The {types} types that read images, videos or audio, with all types of
`AutoModelForImageTextToText`, in onnxruntime-genai 0.18: a prompt without images, with one image and with two. A type
is an error if its images or audio are not exported, also where it is right without them. Types that are refused and
cannot be made small have no weights.""",
    "AutoModelForSpeechSeq2Seq": """The {types} types that read speech: Whisper in onnxruntime-genai 0.18, others in
a loop in ONNX Runtime, with audio of two lengths, alone and in a batch of one length.""",
    "AutoModelForSeq2SeqLM": """The {types} types that read a source text, in a loop in ONNX Runtime: one source, a
batch, sources of unequal lengths, and the same for long sources.""",
}


def _table(rows: Mapping[str, Row]) -> str:
    counts = Counter(row["result"] for row in rows.values())
    numbers = ", ".join(f"{counts[name]} {name}" for name in _ORDER if counts[name])
    lines = [
        f"| {model_type} | {row['result']} | {_cell(row)} |\n"
        for model_type, row in sorted(rows.items(), key=lambda item: (_ORDER.index(item[1]["result"]), item[0]))
    ]
    return f"{numbers}.\n\n| Model type | Result | Remark |\n|---|---|---|\n" + "".join(lines)


def _cell(row: Row) -> str:
    remark = "right with `text_only`" if row["result"] == "error" else "with `text_only`"
    notes = [remark if note == "text_only" else note for note in row.get("notes", ())]
    reason = re.sub(r"error\[FX\d+\]: (model: )?", "", str(row.get("reason", "")))
    return "; ".join(filter(None, [*notes, reason])).replace("|", "\\|")


def _read() -> dict[str, dict[str, Row]]:
    results: dict[str, dict[str, Row]] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return results


def _write(auto_class: str, name: str, row: Row) -> None:
    """Replace one row; other runs may have written theirs."""
    results = _read()
    results.setdefault(auto_class, {})[name] = row
    ordered = {each: dict(sorted(results[each].items())) for each in _CLASSES if each in results}
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the types, and write the JSON file and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--class", dest="auto_class", choices=_CLASSES, help="by default all")
    parser.add_argument("--types", help="comma-separated; by default all")
    parser.add_argument("--missing", action="store_true", help="only types without a result")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--page", action="store_true", help="write the page of docs from the results")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    given = options.types.split(",") if options.types else None
    for auto_class in [options.auto_class] if options.auto_class else [] if options.page else _CLASSES:
        rows = _read().get(auto_class, {})
        chosen = [
            name
            for name in types_of(auto_class)
            if (given is None or name in given) and not (options.missing and name in rows)
        ]
        with ThreadPoolExecutor(options.processes) as pool:
            found = pool.map(partial(_in_process, auto_class=auto_class), chosen)
            for name, row in zip(chosen, found, strict=True):
                sys.stdout.write(f"{name}: {row['result']} {_cell(row)[:200]} {row.get('distinct', '')}\n")
                sys.stdout.flush()
                _write(auto_class, name, row)
    if options.page:
        PAGE.write_text(page(_read()), encoding="utf-8")


if __name__ == "__main__":
    main()
