"""Tiny models with vision and random weights, one of each family, as OpenVINO IR: fixtures of tests/data/zoo_vision.

Each is a NAME.tar.xz with config.json, preprocessor_config.json and the networks that optimum-intel exports. Weights
are multiples of 1/16, as in tests/makers/zoo.py; those of vision are large, so that the answers tell images apart.
All have the tokenizer in tokenizer.tar.xz.

python -m tests.makers.zoo_vision DIR [NAME...]   (needs torch, transformers and optimum-intel)
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.makers.zoo import pack

VOCAB = 384
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 4,
    "tie_word_embeddings": False,
}
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<pad>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("<start_of_image>", "<end_of_image>", "<image_soft_token>", "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    *("<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<row_1_col_2>", "<row_2_col_1>", "<row_2_col_2>"),
    *("<img>", "</img>", "<IMG_CONTEXT>"),
)
"""The first tokens of the one tokenizer that all models have, and with them those of images in all families."""
TEXTS = (
    "What do you see?",
    "Describe the images.",
    "Which colors are these?",
    "user",
    "assistant",
    "Hello! Thank you.",
)
IDS = {text: number for number, text in enumerate(SPECIAL)}
LATER, FIRST_LATER = ("<|image>", "<|image|>", "<image|>"), 337
"""The last tokens of the tokenizer, also of images, and the number of the first."""
CLIP: dict[str, Any] = {
    "model_type": "clip_vision_model",
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
    "projection_dim": 64,
}
LLAVA: dict[str, Any] = {
    "vision_config": CLIP,
    "text_config": {"model_type": "llama", **TEXT},
    "image_token_index": IDS["<image>"],
    "image_seq_length": 16,
    "vision_feature_select_strategy": "default",
    "vision_feature_layer": -2,
    "tie_word_embeddings": False,
}
GRIDS = [[32, 64], [64, 32], [64, 64], [96, 32], [32, 96]]
QWEN_TEXT: dict[str, Any] = {
    **TEXT,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "default", "type": "default", "mrope_section": [4, 6, 6]},
}
QWEN: dict[str, Any] = {
    "image_token_id": IDS["<|image_pad|>"],
    "video_token_id": IDS["<|video_pad|>"],
    "vision_start_token_id": IDS["<|vision_start|>"],
    "vision_end_token_id": IDS["<|vision_end|>"],
}
QWEN_VISION = {"depth": 2, "num_heads": 2, "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2}
QWEN3_VISION = {
    **QWEN_VISION,
    "hidden_size": 64,
    "intermediate_size": 32,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}
DELTA_NET = {
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
QWEN3_5_TEXT = {
    **TEXT,
    **DELTA_NET,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
    },
}
GEMMA4_TEXT = {
    "model_type": "gemma4_text",
    **TEXT,
    "num_hidden_layers": 4,
    "global_head_dim": 64,
    "vocab_size_per_layer_input": VOCAB,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "final_logit_softcapping": 30.0,
}
GEMMA4 = {
    "vision_config": {
        "model_type": "gemma4_vision",
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "patch_size": 4,
        "position_embedding_size": 256,
    },
    "audio_config": None,
    "boi_token_id": FIRST_LATER,
    "image_token_id": FIRST_LATER + 1,
    "eoi_token_id": FIRST_LATER + 2,
    "video_token_id": IDS["<|video_pad|>"],
    "audio_token_id": None,
    "tie_word_embeddings": False,
}
TILED = "idefics3", "smolvlm"
TILES = {
    "text_config": {"model_type": "llama", **TEXT},
    "image_token_id": IDS["<image>"],
    "scale_factor": 2,
    "pad_token_id": IDS["<pad>"],
    "tie_word_embeddings": False,
}
TILED_VISION = {
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
MISTRAL = {
    "vision_config": {
        "model_type": "pixtral",
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 32,
        "image_size": 64,
        "patch_size": 8,
    },
    "image_token_index": IDS["[IMG]"],
    "spatial_merge_size": 2,
    "vision_feature_layer": -1,
    "tie_word_embeddings": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "llava": LLAVA,
    "llava_next": {**LLAVA, "image_grid_pinpoints": GRIDS},
    "qwen2_vl": {
        **QWEN,
        "text_config": {"model_type": "qwen2_vl_text", **QWEN_TEXT},
        "vision_config": {**QWEN_VISION, "embed_dim": 64, "hidden_size": 64, "mlp_ratio": 2},
    },
    "qwen2_5_vl": {
        **QWEN,
        "text_config": {"model_type": "qwen2_5_vl_text", **QWEN_TEXT},
        "vision_config": {
            **QWEN_VISION,
            "hidden_size": 64,
            "intermediate_size": 32,
            "out_hidden_size": 64,
            "window_size": 64,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
        },
    },
    "qwen3_vl": {
        **QWEN,
        "text_config": {
            "model_type": "qwen3_vl_text",
            **TEXT,
            "rope_theta": 10000.0,
            "rope_scaling": {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True},
        },
        "vision_config": {**QWEN3_VISION, "deepstack_visual_indexes": [0]},
    },
    "qwen3_5": {
        **QWEN,
        "text_config": {"model_type": "qwen3_5_text", **QWEN3_5_TEXT},
        "vision_config": QWEN3_VISION,
    },
    "qwen3_5_moe": {
        **QWEN,
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            **QWEN3_5_TEXT,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
        "vision_config": QWEN3_VISION,
    },
    "gemma3": {
        "text_config": {
            "model_type": "gemma3_text",
            **TEXT,
            "query_pre_attn_scalar": 32,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 64,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
            "vision_use_head": False,
        },
        "mm_tokens_per_image": 4,
        "initializer_range": 0.3,
        "image_token_index": IDS["<image_soft_token>"],
        "boi_token_index": IDS["<start_of_image>"],
        "eoi_token_index": IDS["<end_of_image>"],
        "tie_word_embeddings": False,
    },
    "gemma4": {**GEMMA4, "text_config": {**GEMMA4_TEXT, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16}},
    "gemma4-moe": {
        **GEMMA4,
        "text_config": {
            **GEMMA4_TEXT,
            "hidden_size_per_layer_input": 0,
            "use_bidirectional_attention": "vision",
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 16,
        },
    },
    "gemma4_unified": {
        **GEMMA4,
        "text_config": {
            **{name: value for name, value in GEMMA4_TEXT.items() if name != "vocab_size_per_layer_input"},
            "model_type": "gemma4_unified_text",
            "use_bidirectional_attention": "vision",
        },
        "vision_config": {
            "model_type": "gemma4_unified_vision",
            "patch_size": 4,
            "mm_embed_dim": 64,
            "mm_posemb_size": 80,
            "output_proj_dims": 64,
        },
    },
    "idefics3": {**TILES, "vision_config": {**TILED_VISION, "model_type": "idefics3_vision"}},
    "smolvlm": {**TILES, "vision_config": {**TILED_VISION, "model_type": "smolvlm_vision"}},
    "mistral3": {**MISTRAL, "text_config": {"model_type": "mistral", **TEXT, "sliding_window": None}},
}
"""The configuration of each, by model_type of transformers; what is behind a "-" tells variants apart.

Made with optimum-intel 2.2.0 and transformers 4.57.6, but for the Qwen3.5 (5.2.0), the Gemma 4 (5.5.4) and its unified
kind (5.10.4). The answers of torch are from the same versions, but for idefics3 (5.2.0) and smolvlm (5.23.0): 4.57.6
gives their patches wrong positions.
"""
CLIP_PIXELS = {
    "image_processor_type": "CLIPImageProcessor",
    "do_resize": True,
    "do_center_crop": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "size": {"shortest_edge": 32},
    "crop_size": {"height": 32, "width": 32},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "rescale_factor": 1 / 255,
}
QWEN_PIXELS = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "patch_size": 8,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 256,
    "max_pixels": 16384,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "rescale_factor": 1 / 255,
}
QWEN3_PIXELS = {
    **{name: value for name, value in QWEN_PIXELS.items() if name not in ("min_pixels", "max_pixels")},
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "size": {"shortest_edge": 256, "longest_edge": 16384},
    "image_processor_type": "Qwen2VLImageProcessorFast",
}
GEMMA4_PIXELS = {
    "image_processor_type": "Gemma4ImageProcessor",
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": False,
    "do_convert_rgb": True,
    "image_mean": [0.0] * 3,
    "image_std": [1.0] * 3,
    "resample": 3,
    "rescale_factor": 1 / 255,
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "max_soft_tokens": 70,
    "image_seq_length": 70,
}
TILED_PIXELS = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "do_image_splitting": True,
    "do_pad": True,
    "size": {"longest_edge": 64},
    "max_image_size": {"longest_edge": 32},
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "resample": 1,
    "rescale_factor": 1 / 255,
}
PIXTRAL_PIXELS = {
    "image_processor_type": "PixtralImageProcessor",
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "size": {"longest_edge": 64},
    "patch_size": {"height": 8, "width": 8},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "rescale_factor": 1 / 255,
}
PIXELS: dict[str, dict[str, Any]] = {
    "llava": CLIP_PIXELS,
    "llava_next": {
        **CLIP_PIXELS,
        "image_processor_type": "LlavaNextImageProcessor",
        "image_grid_pinpoints": GRIDS,
        "do_pad": True,
    },
    "qwen2_vl": QWEN_PIXELS,
    "qwen2_5_vl": QWEN_PIXELS,
    "qwen3_vl": QWEN3_PIXELS,
    "qwen3_5": QWEN3_PIXELS,
    "qwen3_5_moe": QWEN3_PIXELS,
    "gemma4": GEMMA4_PIXELS,
    "gemma4-moe": GEMMA4_PIXELS,
    "gemma4_unified": {**GEMMA4_PIXELS, "image_processor_type": "Gemma4UnifiedImageProcessor"},
    "idefics3": {**TILED_PIXELS, "image_processor_type": "Idefics3ImageProcessor"},
    "smolvlm": {**TILED_PIXELS, "image_processor_type": "SmolVLMImageProcessor"},
    "mistral3": PIXTRAL_PIXELS,
    "gemma3": {
        "image_processor_type": "Gemma3ImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": None,
        "do_pan_and_scan": None,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": {"height": 32, "width": 32},
        "resample": 2,
        "rescale_factor": 1 / 255,
        "image_seq_length": 4,
    },
}
"""preprocessor_config.json of each."""
LOUD = {"multi_modal_projector": 3.0, "merger": 3.0, "connector": 3.0, "embed_vision": 3.0}
"""By what the weights of these parts are multiplied: a tiny encoder is quiet beside large text embeddings."""


PLAIN: dict[str, dict[str, Any]] = {
    name: {**fields, "image_newline": [0.0] * 64} if name == "llava_next" else fields for name, fields in MODELS.items()
}
"""What config.json has of the configuration, as far as images need it."""


def tokenizer() -> Any:
    """A byte-level BPE."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, initial_alphabet=alphabet, special_tokens=[*SPECIAL], show_progress=False
    )
    learner.train_from_iterator(TEXTS, trainer)
    learner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (*SPECIAL, *LATER)])
    assert learner.token_to_id(LATER[0]) == FIRST_LATER
    return PreTrainedTokenizerFast(
        tokenizer_object=learner, eos_token="<|im_end|>", pad_token="<pad>", clean_up_tokenization_spaces=False
    )


def make_tokenizer(target: Path) -> None:
    """Write tokenizer.tar.xz into the folder."""
    import openvino as ov
    from openvino_tokenizers import convert_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        for name, converted in zip(
            ("tokenizer", "detokenizer"), convert_tokenizer(tokenizer(), with_detokenizer=True), strict=True
        ):
            ov.save_model(converted, Path(folder) / f"openvino_{name}.xml")
        pack(sorted(Path(folder).iterdir()), target / "tokenizer.tar.xz")


def network(name: str) -> Any:
    """The model in torch. The same weights every time, with one version of torch and transformers."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(1)
    config = AutoConfig.for_model(name.partition("-")[0], **MODELS[name])
    model = AutoModelForImageTextToText.from_config(config).float().eval()
    if name in TILED:  # transformers 5 makes their weights in another order than 4
        torch.manual_seed(1)
    with torch.no_grad():
        for part, weights in model.named_parameters():
            visual = name in TILED or "vision_tower" in part or "visual" in part
            if (visual or not weights.any()) and weights.ndim > 1:  # Gemma's projection is made of zeros
                weights.normal_(std=0.2)
            for loud, factor in LOUD.items():
                weights.mul_(factor if loud in part and weights.ndim > 1 else 1)
            weights.copy_((weights * 16).round() / 16)
        model.lm_head.weight[: len(SPECIAL)] = 0  # or the models would answer with tokens that stand for images
        if name.startswith("gemma4"):
            model.lm_head.weight[FIRST_LATER : FIRST_LATER + len(LATER)] = 0
    return model


def make(name: str, target: Path) -> None:
    """Write NAME.tar.xz into the folder."""
    import openvino as ov
    from optimum.intel.openvino import OVModelForVisualCausalLM

    model = network(name)
    with tempfile.TemporaryDirectory() as folder:
        source, exported, small = (Path(folder) / part for part in ("torch", "exported", "small"))
        model.save_pretrained(source)
        (source / "preprocessor_config.json").write_text(json.dumps(PIXELS[name]))
        OVModelForVisualCausalLM.from_pretrained(
            source, export=True, load_in_8bit=False, compile=False
        ).save_pretrained(exported)
        small.mkdir()
        for path in sorted(exported.glob("openvino_*.xml")):
            ov.save_model(ov.Core().read_model(path), small / path.name, compress_to_fp16=True)
        (small / "config.json").write_text((exported / "config.json").read_text())
        (small / "preprocessor_config.json").write_text(json.dumps(PIXELS[name]))
        pack(sorted(small.iterdir()), target / f"{name}.tar.xz")


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(MODELS):
        sys.exit(__doc__)
    os.environ["HF_HUB_OFFLINE"] = "1"
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(folder)
    for each in sys.argv[2:] or MODELS:
        make(each, folder)
