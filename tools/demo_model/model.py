"""The network, a standard Qwen3 of about two million parameters, and the loss of a batch."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import Qwen3Config, Qwen3ForCausalLM

POSITIONS = 131_072
# Heads are 32 wide, so the queries of the main model are a little wider (192) than its hidden state.
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
MAIN = dict(zip(SIZES, (160, 5, 6, 2, 384), strict=True))
DRAFT = dict(zip(SIZES, (96, 2, 3, 1, 192), strict=True))


def build(tokenizer: Tokenizer, sizes: dict[str, int]) -> Qwen3ForCausalLM:
    end, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        head_dim=32,
        tie_word_embeddings=True,
        initializer_range=0.02,
        attn_implementation="sdpa",
        max_position_embeddings=POSITIONS,
        rope_theta=10_000.0,
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
        **sizes,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.update(eos_token_id=[end, pad], pad_token_id=pad, bos_token_id=None, do_sample=False)
    return model


@torch.no_grad()
def wanted(
    teacher: Qwen3ForCausalLM, ids: torch.Tensor, rows: torch.Tensor, kept: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the teacher's probabilities for the rows that are in lines to be learned from it.

    Args:
        teacher: The model to learn from.
        ids: The token ids, of shape [lines, length].
        rows: Places in the flattened ids.
        kept: Bool of shape [lines]: whether the teacher is followed in this line.

    Returns:
        Indexes into `rows`, and the probabilities of the next token for each.
    """
    places = torch.full((ids.numel(),), -1, device=ids.device)  # the index of a row in the lines that the teacher reads
    width = ids.shape[1]
    places.view_as(ids)[kept] = torch.arange(int(kept.sum()) * width, device=ids.device).view(-1, width)
    chosen = places[rows]
    [indexes] = (chosen >= 0).nonzero(as_tuple=True)
    if not len(indexes):
        return indexes, torch.empty(0, teacher.config.vocab_size, device=ids.device)
    hidden = teacher.model(input_ids=ids[kept], use_cache=False).last_hidden_state
    logits = teacher.lm_head(hidden.reshape(-1, hidden.shape[-1])[chosen[indexes]])
    return indexes, logits.float().softmax(-1)


def loss(
    model: Qwen3ForCausalLM,
    ids: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor,
    bfloat16: bool,
    soft: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the loss of a batch.

    The logits, the largest product, are computed only for `rows`. Lines are padded on the right, so the causal mask is
    sufficient.

    Args:
        model: The model to train.
        ids: The token ids, of shape [lines, length].
        rows: Places in the flattened ids whose next token is learned.
        weights: The weight of each row.
        bfloat16: Whether to compute in bfloat16.
        soft: Indexes into `rows`, and the probabilities to learn there in place of the single token (see `wanted`).

    Returns:
        The weighted loss to minimize, and the loss on answer tokens to print.
    """
    with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=bfloat16):
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden.reshape(-1, hidden.shape[-1])[rows]).float()
    each = cross_entropy(logits, ids.reshape(-1)[rows + 1], reduction="none")
    if soft is not None:
        indexes, probabilities = soft
        each = each.index_put((indexes,), cross_entropy(logits[indexes], probabilities, reduction="none"))
    answers = (weights > 0.9).float()
    return (each * weights).sum() / weights.sum(), (each * answers).sum().detach() / answers.sum()
