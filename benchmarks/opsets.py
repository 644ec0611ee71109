"""Every network at every opset: right in ONNX Runtime, or refused by an error that names the operator and an opset.

    python -m benchmarks.opsets [--models gpt2,llama] [--opsets 11,13,20] [--json opsets.json]

Exports with dynamic sizes where the network has them. ``ok``: ONNX Runtime agrees with eager torch; a number: the
export is refused, and that is the lowest opset that can express the model; anything else is a defect.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

import fxonnx

from ._exporters import ours, silenced
from ._output import print_table, write_json
from ._zoo import ZOO, Network

OPSETS = (11, 13, 15, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26)


def outcome(network: Network, captured: Any, opset: int) -> str:
    """The outcome of an export."""
    try:
        with silenced():
            program = fxonnx.export(captured, network.args, kwargs=network.kwargs, opset_version=opset)
            program.verify(network.args, network.kwargs, model=network.model)
    except fxonnx.UnsupportedOperatorError as error:
        return str(error.lowest_opset)
    except fxonnx.VerificationError:
        return "wrong"
    except fxonnx.ExportError as error:
        return error.code
    return "ok"


def main(arguments: Sequence[str] | None = None) -> None:
    """Exports, prints the table and writes the JSON file; exits with 1 if there is a defect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(ZOO))
    parser.add_argument("--opsets", default=",".join(map(str, OPSETS)))
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    opsets = [int(opset) for opset in options.opsets.split(",")]
    logging.disable(logging.WARNING)
    rows: list[dict[str, str]] = []
    for name in options.models.split(","):
        torch.manual_seed(0)
        network = ZOO[name]()
        with silenced():
            captured = ours(network, dynamic=True).exported_program
        rows.append({"model": name} | {str(opset): outcome(network, captured, opset) for opset in opsets})
        print(" ".join(rows[-1].values()), file=sys.stderr)
    keys = ["model", *map(str, opsets)]
    print_table("Opsets", keys, [[row[key] for key in keys] for row in rows])
    counted = Counter(row[str(opset)] for row in rows for opset in opsets)
    print(", ".join(f"{count} {what}" for what, count in counted.most_common()))
    write_json(options.json, {"rows": rows, "counted": dict(counted)})
    if any(what != "ok" and not what.isdigit() for what in counted):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
