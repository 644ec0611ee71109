"""A BERT of transformers in transformers.js: the same labels and scores as in transformers.

npm install --ignore-scripts @huggingface/transformers@4.3.1, in the current directory
"""

import json
import subprocess
import sys
from pathlib import Path

from transformers import pipeline

import fxonnx.huggingface

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "web"))
from make_model import make_checkpoint  # noqa: E402  # a small BERT with random weights

checkpoint = make_checkpoint(Path("checkpoint"))
exported = fxonnx.huggingface.export(checkpoint, "models/bert", layout="transformers.js", dtype=["fp32", "q8"])
print(exported)

text = "the quick brown fox"
command = ["node", str(HERE / "label.mjs"), "models", "bert", text]
answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
(expected,) = pipeline("text-classification", model=str(checkpoint))(text)
assert answer["label"] == expected["label"]
assert abs(answer["score"] - expected["score"]) < 1e-4
print("in transformers.js:", answer)
