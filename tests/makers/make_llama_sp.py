"""python -m tests.makers.make_llama_sp [folder] makes tests/data/llama_sp, a random Llama with a SentencePiece
tokenizer.

The tokenizer has pieces that start with "▁" for a space, and `<0xNN>` byte tokens for all characters that are not in
the vocabulary (byte fallback), like Llama 2 and its descendants. It learns only ASCII, so that all other characters
need byte tokens. The network is random and as small as the engine accepts; its text is meaningless.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tools.demo_model.corpus import draw
from tools.demo_model.export import save

VOCABULARY = 640
SPECIAL = ["<unk>", "<s>", "</s>"]
TEMPLATE = (
    "{%- for message in messages -%}{{- message.role + ': ' + message.content + '\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- 'assistant: ' -}}{%- endif -%}"
)


def tokenizer(dialogs: int = 3000) -> Tokenizer:
    """Learns merges with a normal BPE in which spaces are "▁", and numbers the tokens like SentencePiece."""
    texts = []
    for seed in range(dialogs):
        texts += [m["content"].encode("ascii", "ignore").decode() for m in draw(seed)[0].messages if m.get("content")]
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never")
    alphabet = [chr(i) for i in range(33, 127)] + ["▁"]
    learner.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY - 259, initial_alphabet=alphabet, limit_alphabet=len(alphabet), show_progress=False
        ),
    )
    learned = json.loads(learner.to_str())["model"]
    order = SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)] + sorted(learned["vocab"], key=learned["vocab"].get)
    merges = [tuple(pair) for pair in learned["merges"]]
    result = Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(order)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    result.normalizer = learner.normalizer
    result.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    result.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    result.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return result


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2] / "tests" / "data" / "llama_sp")
    torch.manual_seed(8)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="</s>",
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    wrapped.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=len(wrapped),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.update(bos_token_id=1, eos_token_id=2, pad_token_id=2, do_sample=False)
    print(f"{save(model, wrapped, target):,} bytes in {target}")


if __name__ == "__main__":
    main()
