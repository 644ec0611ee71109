"""A Llama with 4-bit weights and a LoRA adapter in onnxruntime-genai, from the checkpoints of transformers and PEFT."""

from pathlib import Path

import numpy as np
import onnxruntime_genai as og
import peft
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

import fxonnx.genai

# Small checkpoints with random weights, as those of a training run.
bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
special = ["<pad>", "<s>", "</s>"]
trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
bpe.train_from_iterator(["the quick fox"], trainer)
PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<pad>", eos_token="</s>").save_pretrained("base")
set_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}
base = LlamaForCausalLM(LlamaConfig(vocab_size=300, initializer_range=0.3, bos_token_id=1, eos_token_id=2, **sizes))
base.save_pretrained("base")
config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
peft.get_peft_model(base, config).save_pretrained("poems")

# The export: 4-bit weights, the adapter in a file of its own, the tokens compared with those of transformers.
path = fxonnx.genai.export("base", "llama", precision="int4", adapters={"poems": "poems"}, chat_template=False)
print(sorted(file.name for file in Path(path).iterdir()))

model = og.Model(str(path))
tokens = {}
for name in (None, "poems"):
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=16, do_sample=False)
    generator = og.Generator(model, parameters)
    if name is not None:
        adapters = og.Adapters(model)
        adapters.load(str(path / f"{name}.onnx_adapter"), name)
        generator.set_active_adapter(adapters, name)
    generator.append_tokens(np.array([[5, 6, 7, 8]], dtype=np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    tokens[name] = generator.get_sequence(0).tolist()
print(tokens)
assert tokens[None] != tokens["poems"]
