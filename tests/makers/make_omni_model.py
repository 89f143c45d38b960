"""Makes tests/data/omni_model.tar.xz: a tiny random Qwen3-Omni as OpenVINO IR, which reads text, images and audio, and
speaks with two voices.

Weights are multiples of 1/16, as in tests/makers/zoo.py. As in Qwen3-Omni, the last 1024 tokens of the talker's
vocabulary are not sounds.

python -m tests.makers.make_omni_model   (needs torch, transformers 5 and optimum-intel 2.2)
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tests.makers.zoo import pack
from tests.makers.zoo_vision import IDS, MODELS, PIXELS, TEXT, tokenizer

OUT = Path(__file__).parents[2] / "tests" / "data" / "omni_model.tar.xz"
AUDIO = ("<|audio_start|>", "<|audio_pad|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
SOUNDS = 64
"""The number of codes for a frame of sound. The talker's special tokens follow them."""
GROUPS = 4
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ROPE = {
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True},
}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
CHAT_TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.content is string -%}{{- message.content -}}
{%- else -%}{%- for part in message.content -%}{{- part.text -}}{%- endfor -%}{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def config(ids: dict[str, int]) -> dict[str, Any]:
    """Returns the fields of config.json. `ids` has the tokens with a meaning."""
    text = {**TEXT, **ROPE, **MIXTURE}
    media = {
        "audio_token_id": ids["<|audio_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "image_token_id": IDS["<|image_pad|>"],
        "video_token_id": IDS["<|video_pad|>"],
        "vision_start_token_id": IDS["<|vision_start|>"],
    }
    codes = {"codec_pad_id": SOUNDS, "codec_bos_id": SOUNDS + 1, "codec_eos_token_id": SOUNDS + 2}
    codes |= {"codec_nothink_id": SOUNDS + 3, "codec_think_bos_id": SOUNDS + 4, "codec_think_eos_id": SOUNDS + 5}
    talker = {
        **text,
        "vocab_size": SOUNDS + 1024,
        "shared_expert_intermediate_size": 16,
        "pad_token_id": SOUNDS,
        "bos_token_id": SOUNDS + 1,
        "eos_token_id": SOUNDS + 2,
    }
    small = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1}
    return {
        "thinker_config": {
            "text_config": text,
            "vision_config": MODELS["qwen3_vl"]["vision_config"],
            "audio_config": {
                "num_mel_bins": 128,
                "encoder_layers": 1,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 32,
                "d_model": 32,
                "output_dim": 64,
                "n_window": 50,
                "n_window_infer": 800,
                "downsample_hidden_size": 8,
            },
            "vision_end_token_id": IDS["<|vision_end|>"],
            "audio_end_token_id": ids["<|audio_end|>"],
            "user_token_id": ids["user"],
            **media,
        },
        "talker_config": {
            "text_config": talker,
            "code_predictor_config": {
                **small,
                **HEADS,
                "vocab_size": SOUNDS,
                "num_code_groups": GROUPS,
                "rope_theta": 10000.0,
            },
            "spatial_merge_size": 2,
            "num_code_groups": GROUPS,
            "thinker_hidden_size": 64,
            "accept_hidden_layer": 1,
            "speaker_id": {"ethan": SOUNDS + 6, "chelsie": SOUNDS + 7},
            **codes,
            **media,
        },
        "code2wav_config": {
            **small,
            "hidden_size": 32,
            "codebook_size": SOUNDS,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "num_quantizers": GROUPS,
            "decoder_dim": 32,
        },
        "enable_audio_output": True,
        "im_start_token_id": IDS["<|im_start|>"],
        "im_end_token_id": IDS["<|im_end|>"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "system_token_id": ids["system"],
        "user_token_id": ids["user"],
        "assistant_token_id": ids["assistant"],
    }


def network(fields: dict[str, Any]) -> Any:
    """Returns the model in torch."""
    import torch
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

    torch.manual_seed(1)
    model = Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig(**fields)).float().eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                weights.normal_(std=0.2)
            weights.copy_((weights * 16).round() / 16)
        head = model.thinker.lm_head.weight
        head[: len(IDS)] = 0  # otherwise the model would generate tokens that stand for images and audio
        head[fields["thinker_config"]["audio_start_token_id"] - 3 :] = 0
    return model


def make() -> None:
    import openvino as ov
    from openvino_tokenizers import convert_tokenizer
    from optimum.intel.openvino import OVModelForMultimodalLM
    from tokenizers import AddedToken

    words = tokenizer()
    words.add_tokens([AddedToken(token, special=True, normalized=False) for token in AUDIO])
    words.add_tokens(["system"])
    ids = {token: words.convert_tokens_to_ids(token) for token in (*AUDIO, "system", "user", "assistant")}
    model = network(config(ids))
    sound = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "hop_length": 160, "n_fft": 400}
    sound |= {"sampling_rate": 16000, "chunk_length": 300, "n_samples": 4800000, "nb_max_frames": 30000}
    with tempfile.TemporaryDirectory() as folder:
        source, exported, small = (Path(folder) / part for part in ("torch", "exported", "small"))
        model.save_pretrained(source)
        words.save_pretrained(source)
        (source / "preprocessor_config.json").write_text(json.dumps({**PIXELS["qwen3_vl"], **sound}))
        OVModelForMultimodalLM.from_pretrained(source, export=True, load_in_8bit=False, compile=False).save_pretrained(
            exported
        )
        small.mkdir()
        for path in sorted(exported.glob("openvino_*_model.xml")):
            ov.save_model(ov.Core().read_model(path), small / path.name, compress_to_fp16=True)
        for name, converted in zip(
            ("tokenizer", "detokenizer"), convert_tokenizer(words, with_detokenizer=True), strict=True
        ):
            ov.save_model(converted, small / f"openvino_{name}.xml")
        for name in ("config.json", "preprocessor_config.json"):
            (small / name).write_text((exported / name).read_text())
        generation = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 4}
        (small / "generation_config.json").write_text(json.dumps(generation))
        (small / "chat_template.jinja").write_text(CHAT_TEMPLATE)
        pack(sorted(small.iterdir()), OUT)


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    make()
