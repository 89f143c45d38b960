"""The metadata of a GGUF file: values by key, of which vocabularies are decoded late."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterable
from typing import Any

LENGTH = struct.Struct("<Q")
"""The length before a string in a file."""

UNNEEDED = {
    *("context_length", "vocab_size", "feed_forward_length", "embedding_length_out", "moe_latent_size"),
    *("attention.key_length", "attention.value_length", "attention.value_length_mla", "attention.recurrent_layers"),
    *("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count"),
    *("expert_count", "expert_used_count", "expert_shared_count", "leading_dense_block_count"),
    *("expert_feed_forward_length", "expert_shared_feed_forward_length", "interleave_moe_layer_step"),
    *(f"ssm.{name}" for name in ("conv_kernel", "inner_size", "group_count", "state_size", "time_step_rank")),
    *(
        "attention.q_lora_rank",
        "rope.scaling.finetuned",
        "shortconv.l_cache",
        "full_attention_interval",
        "pooling_type",
    ),
    *("rope.dimension_sections", "n_deepstack_layers", "classifier.output_labels", "tensor_data_layout"),
    *("attention.value_length_swa", "rope.dimension_count_swa"),
    *("rope.scaling.attn_factor", "rope.scaling.original_context_length"),
    *("has_audio_encoder", "has_text_encoder", "has_llava_projector", "has_minicpmv_projector"),
    *(
        f"vision.{name}"
        for name in (
            *("feed_forward_length", "projection_dim", "mm_projector_type", "mm_patch_merge_type"),
            *("image_crop_resolution", "image_split_resolution"),
        )
    ),
}
"""Keys that only some networks need: those of which the tensors have the sizes, or which are of parts that the network
lacks, such as rotations and images."""
UNSET = {
    "activation.situ_beta": 1.0,
    "attention.causal": True,
    "attention.indexer.kpool_select_tail": True,
    "attention.rope_pattern": 1,
    "attn_logit_softcapping": 50.0,
    "decoder_start_token_id": -1,
    "deepstack_mapping": -1,
    "expert_group_scale": 0.05,
    "final_logit_softcapping": 30.0,
    "kda.gate_lower_bound": -math.inf,
    "rope.freq_base_swa": 10000.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
    "rope.scaling.yarn_ext_factor": -1.0,
    "router_logit_softcapping": 30.0,
    "token_shift_count": 2,
}
"""The values, other than 0, of keys that llama.cpp also writes into files of networks that do not use them, as
llama-finetune does."""


class Metadata(dict[str, Any]):
    """Values by key. It keeps the keys that were looked up: what nobody uses may change the network."""

    def __init__(self, entries: Iterable[tuple[str, Any]]) -> None:
        super().__init__(entries)
        self.used: set[str] = set()
        """The keys that were looked up, also those that are missing."""

    def __getitem__(self, key: str) -> Any:
        self.used.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.used.add(key)
        return super().get(key, default)


class StringArray:
    """An array of strings that are decoded only when they are needed, as few readers need the vocabulary."""

    def __init__(self, data: bytes, ends: array[int]) -> None:
        """Keeps the array as bytes.

        Args:
            data: The strings as they are in the file, each preceded by its length.
            ends: The end of each string in the data.
        """
        self._data = data
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def decoded(self) -> list[str]:
        """Returns all strings; bytes that are not UTF-8 are replaced."""
        data, begin, found = self._data, LENGTH.size, []
        for end in self._ends:
            found.append(data[begin:end])
            begin = end + LENGTH.size
        texts = b"\0".join(found).decode("utf-8", "replace").split("\0")  # all at once, in a third of the time
        return texts if len(texts) == len(found) else [each.decode("utf-8", "replace") for each in found]

    def text(self, number: int) -> str:
        """Returns the string with this index."""
        begin = (self._ends[number - 1] if number else 0) + LENGTH.size
        return self._data[begin : self._ends[number]].decode("utf-8", "replace")


def says(name: str, value: Any) -> bool:
    """Returns whether a value of an architecture says something of its networks.

    Files that llama.cpp saved have values for what a network lacks, too: 0, nothing, or the key's value in UNSET, also
    for each element of an array.

    Args:
        name: The key, without the name of the architecture.
        value: The value.
    """
    if isinstance(value, list | StringArray):
        return any(says(name, each) for each in (value if isinstance(value, list) else value.decoded()))
    unset = UNSET.get(name, 0)
    if isinstance(value, bool):
        return value is not bool(unset)
    return bool(value) and (isinstance(value, str) or not math.isclose(value, unset, rel_tol=1e-6))
