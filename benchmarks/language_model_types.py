"""All causal language models of transformers in onnxruntime-genai: tokens of small models with random weights.

    python -m benchmarks.language_model_types [--types llama,gemma2] [--missing] [--processes 2]

Each type is exported in a process of its own, without the comparison of the export. Then 24 greedy tokens are compared
with ``generate`` of transformers for each prompt alone: one prompt, a batch of prompts of one length, prompts
of unequal lengths, and the same beyond the windows of the configuration. Where any differ, the export is repeated with
its comparison. Results go to benchmarks/results/language_model_types.json, from which --page writes the table of
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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import torch

import fxonnx.genai
from fxonnx import ExportError
from tests.genai.small_models import make_tokenizer, prompt

from ._language_model_configs import PARTS_OF_OTHERS, all_types, make_type

__all__ = ["CASES", "PAGE", "RESULTS", "page", "result_of"]

Row: TypeAlias = dict[str, Any]

RESULTS = Path(__file__).parent / "results" / "language_model_types.json"
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "language-model-types.md"

NEW = 24
CASES: Mapping[str, Sequence[int]] = {
    "one prompt": (6,),
    "batch": (6, 6, 6),
    "unequal lengths": (5, 8, 3),
    "long prompt": (70,),
    "long prompts of unequal lengths": (40, 21, 33),
}
"""Name of a case to the lengths of its prompts; all windows of the configurations are of 8 tokens."""

_SECONDS, _BYTES = 300, 14 << 30
_TOLERANCE = 1e-4
"""Tokens whose logits differ by less than this part of the range of all logits are equally good."""
_ONE_PROMPT, _UNEQUAL = "the model takes one prompt at a time", "prompts of unequal lengths"
_ORDER = ("right", "one prompt at a time", "error", "raw error", "wrong", "not a model of its own")


def result_of(model_type: str) -> Row:
    """Export a small model of a type and compare its tokens."""
    if model_type in PARTS_OF_OTHERS:
        return {"result": "not a model of its own", "reason": PARTS_OF_OTHERS[model_type]}
    try:
        model = make_type(model_type)
    except Exception as error:  # noqa: BLE001 - a result of the table
        return {"result": "raw error", "reason": f"the small model does not run: {_line(error)}"}
    row: Row = {}
    for verify in (False, True):
        row = _exported(model, verify)
        if verify and row["result"] == "error":
            row["reason"] = f"with the comparison: {row['reason']}"
        if row["result"] != "wrong":
            break
    return row


def _exported(model: Any, verify: bool) -> Row:
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        notes: list[str] = []
        try:
            try:
                _export(model, directory, verify, text_only=False)
            except ExportError as error:
                if "text_only=True" not in str(error):
                    raise
                notes.append("text_only")
                _export(model, directory, verify, text_only=True)
        except ExportError as error:
            return {"result": "error", "reason": _line(error)}
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
    return row | ({"reason": "; ".join(problems)} if problems else {}) | ({"notes": notes} if notes else {})


def _export(model: Any, directory: str, verify: bool, text_only: bool) -> None:
    fxonnx.genai.export(model, directory, tokenizer=make_tokenizer(), verify=verify, text_only=text_only)


def _compare(model: Any, directory: Path, cases: Mapping[str, Sequence[int]]) -> tuple[list[str], int]:
    """The cases with other tokens or errors, and the number of distinct tokens that are expected."""
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
        pairs = zip(prompts, found, expected, strict=True)
        if not all(_are_equally_good(model, *each) for each in pairs):
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


def _are_equally_good(model: Any, ids: torch.Tensor, found: list[int], expected: list[int]) -> bool:
    """Whether two rows are equal, or part where two tokens are equally good."""
    if found == expected:
        return True
    first = next(index for index, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
    with torch.no_grad():
        logits = model(torch.cat([ids, torch.tensor(expected[:first], dtype=torch.int64)])[None]).logits[0, -1]
    gap = float((logits[found[first]] - logits[expected[first]]).abs())
    return gap <= _TOLERANCE * float(logits.max() - logits.min())


def _short(text: str) -> str:
    """One line, without the directories of libraries."""
    return re.sub(r"[^\s(]*/site-packages/", "", " ".join(text.split()))


def _line(error: BaseException) -> str:
    text = _short(str(error))
    return text if isinstance(error, ExportError) else f"{type(error).__name__}: {text[:300]}"


def _child(model_type: str, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    try:
        sender.send(result_of(model_type))
    except Exception as error:  # noqa: BLE001 - a result of the table
        sender.send({"result": "raw error", "reason": _line(error)})


def _in_process(model_type: str) -> Row:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(model_type, sender))
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


def page(rows: Mapping[str, Row]) -> str:
    """The page of docs with the table of results."""
    counts = Counter(row["result"] for row in rows.values())
    numbers = ", ".join(f"{counts[name]} {name}" for name in _ORDER if counts[name])
    lines = [
        f"| {model_type} | {row['result']} | {_cell(row)} |"
        for model_type, row in sorted(rows.items(), key=lambda item: (_ORDER.index(item[1]["result"]), item[0]))
    ]
    return f"""# Model types of `fxonnx genai`

Small models with random weights of the {len(rows)} types of `AutoModelForCausalLM` in transformers 5.23, exported by
`fxonnx.genai.export` without its comparison. Then 24 greedy tokens in onnxruntime-genai 0.18 are compared with
`generate` of transformers for each prompt alone: one prompt, a batch, prompts of unequal lengths, and the same beyond
the window of the configuration, which has 8 tokens where the type has one. Where tokens differ, or onnxruntime-genai
does not run the model, the export is repeated with its comparison.

`python -m benchmarks.language_model_types --page` writes this page, and tests/genai/test_types.py compares rows with
new exports.

{numbers}.

| Model type | Result | Remark |
|---|---|---|
""" + "".join(f"{line}\n" for line in lines)


def _cell(row: Row) -> str:
    notes = ["with `text_only`" if note == "text_only" else note for note in row.get("notes", ())]
    reason = re.sub(r"error\[FX\d+\]: (model: )?", "", str(row.get("reason", "")))
    return "; ".join(filter(None, [*notes, reason])).replace("|", "\\|")


def _write(rows: Mapping[str, Row]) -> None:
    RESULTS.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the types, and write the JSON file and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", help="comma-separated; by default all")
    parser.add_argument("--missing", action="store_true", help="only types without a result")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--page", action="store_true", help="write the page of docs from the results")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    chosen = options.types.split(",") if options.types else [] if options.page else all_types()
    chosen = [name for name in chosen if not (options.missing and name in rows)]
    with ThreadPoolExecutor(options.processes) as pool:
        for name, row in zip(chosen, pool.map(_in_process, chosen), strict=True):
            rows[name] = row
            sys.stdout.write(f"{name}: {row['result']} {_cell(row)[:200]} {row.get('distinct', '')}\n")
            sys.stdout.flush()
            _write(rows)
    if options.page:
        PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
