"""Write a language model as OpenVINO IR with weights of few bits, for ``language_model_recipes``.

    .venv-openvino/bin/python -m benchmarks.openvino_export CHECKPOINT OUT --bits 4 --group-size 128

Runs in an environment of its own, since optimum-intel needs an older transformers: ``make .venv-openvino/.installed``.
The settings are optimum's for models without settings of their own: asymmetric, and with int4 the embeddings and the
layer of the logits in 8 bits. OUT gets openvino_model.xml, stateful, and openvino_model.bin.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tests.models.torchvision_shim import import_torchvision


def main(arguments: Sequence[str] | None = None) -> None:
    """Convert one checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("out")
    parser.add_argument("--bits", type=int, choices=(4, 8), required=True)
    parser.add_argument("--group-size", type=int, help="weights with one scale; without it, those of one output")
    options = parser.parse_args(arguments)
    import_torchvision()
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    group = {} if options.group_size is None else {"group_size": options.group_size}
    config = OVWeightQuantizationConfig(bits=options.bits, sym=False, **group)
    model = OVModelForCausalLM.from_pretrained(
        options.checkpoint, export=True, compile=False, quantization_config=config
    )
    model.save_pretrained(options.out)


if __name__ == "__main__":
    main()
