"""Language models as OpenVINO IR in OpenVINO's own runtime, made by optimum-intel in an environment of its own."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FILE", "OpenVinoRunner", "OpenVinoSession", "export_openvino", "has_optimum_intel"]

FILE = "openvino_model.xml"
_ROOT = Path(__file__).parents[1]
_PYTHON = _ROOT / ".venv-openvino" / "bin" / "python"


def has_optimum_intel() -> bool:
    """Whether ``make .venv-openvino/.installed`` has made the environment."""
    return (_ROOT / ".venv-openvino" / ".installed").exists()


def export_openvino(model: Any, path: Path, *options: str) -> None:
    """Save a model for transformers and convert it to ``FILE`` beside ``path``.

    Args:
        model: A model of transformers.
        path: The file that other exporters would write.
        options: For ``benchmarks.openvino_export``.
    """
    source = path.parent / "transformers"
    model.save_pretrained(source)
    command = [str(_PYTHON), "-W", "ignore", "-m", "benchmarks.openvino_export", str(source), str(path.parent)]
    subprocess.run([*command, *options], check=True, cwd=_ROOT, capture_output=True)


class OpenVinoSession:
    """A stateful model on one thread, with OpenVINO's other settings as they are.

    Args:
        path: The IR.
        properties: More properties of the compilation.
    """

    def __init__(self, path: Path, **properties: Any) -> None:
        import openvino

        compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_NUM_THREADS": 1, **properties})
        self.request = compiled.create_infer_request()
        self._past = 0

    def reset(self) -> None:
        """Forget the past."""
        self.request.reset_state()
        self._past = 0

    def feed(self, tokens: NDArray[np.int64]) -> None:
        """Set the inputs for one row of tokens after the past."""
        import openvino

        total = self._past + tokens.shape[1]
        values = {
            "input_ids": tokens,
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(self._past, total)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        for name, value in values.items():
            self.request.set_tensor(name, openvino.Tensor(value))
        self._past = total

    def logits(self) -> NDArray[np.float32]:
        """The logits of the last run."""
        return self.request.get_tensor("logits").data.copy()  # type: ignore[no-any-return]


class OpenVinoRunner:
    """The same measurement as ``Runner`` of ``language_models``; each step is one token longer than the one before.

    Args:
        path: The IR.
        new: Number of new tokens.
        past: Number of tokens before the first step.
        properties: More properties of the compilation.
    """

    def __init__(self, path: Path, *, new: int, past: int, **properties: Any) -> None:
        self.session = OpenVinoSession(path, **properties)
        random = np.random.default_rng(0)
        self._tokens, self._has_past = random.integers(3, 8000, (1, new)), past > 0
        if past:
            self.session.feed(random.integers(3, 8000, (1, past)))
            self.session.request.infer()

    def seconds(self) -> float:
        """CPU seconds of one run."""
        if not self._has_past:
            self.session.reset()
        self.session.feed(self._tokens)
        start = time.process_time()
        self.session.request.infer()
        return time.process_time() - start

    def logits(self) -> NDArray[np.float32]:
        """The logits of the last run."""
        return self.session.logits()
