"""The prompts of language models that rerank, and the tokens whose logits are their scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ....errors import StartError
from .files import PoolingFiles
from .model_kind import NO_YES
from .pooler import Prompt


class RerankPrompt(NamedTuple):
    """The prompt and the tokens of a family of rerankers, as its model card has them."""

    family: str
    """The family's name, for people."""
    names: str
    """A regular expression for the names of its models."""
    prefix: str
    """The text before the pair."""
    body: str
    """The text of a pair, with the placeholders {query} and {document}."""
    instructed: str
    """The same for a request with an instruction, with a further placeholder {instruction}; "" if it takes none."""
    suffix: str
    """The text after the pair."""
    words: tuple[str, ...]
    """The words for an irrelevant document, if any, and a relevant one: the score is the difference of their logits."""


QWEN3 = RerankPrompt(
    family="Qwen3-Reranker",
    names="qwen3-reranker",
    prefix="<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
    body="<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}",
    instructed="<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
    suffix="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    words=NO_YES,
)
FAMILIES = (
    QWEN3,
    QWEN3._replace(
        family="Qwen3-VL-Reranker",
        names="qwen3-vl-reranker",
        body="<Instruct>: Given a search query, retrieve relevant candidates that answer the query."
        "<Query>:{query}\n<Document>:{document}",
        instructed="<Instruct>: {instruction}<Query>:{query}\n<Document>:{document}",
        suffix="<|im_end|>\n<|im_start|>assistant\n",
    ),
    RerankPrompt(
        family="mxbai-rerank-v2",
        names="mxbai-rerank-.*v2",
        prefix="<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n",
        body="query: {query}\ndocument: {document}",
        instructed="instruction: {instruction}\nquery: {query}\ndocument: {document}",
        suffix="\nYou are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
        "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:<|im_end|>\n<|im_start|>assistant\n",
        words=("0", "1"),
    ),
    RerankPrompt(
        family="bge-reranker-v2-gemma",
        names="bge-reranker-v2-gemma",
        prefix="<bos>",
        body="A: {query}\nB: {document}",
        instructed="",
        suffix="\nGiven a query A and a passage B, determine whether the passage contains an answer to the query by "
        "providing a prediction of either 'Yes' or 'No'.",
        words=("Yes",),
    ),
)
Encode = Callable[[Sequence[str]], list[list[int]]]


def choose(files: PoolingFiles) -> tuple[RerankPrompt | None, bool]:
    """Returns the prompt of a reranker, and whether it is only assumed; None for a model that takes pairs of texts."""
    found = next((one for one in FAMILIES if re.search(one.names, files.names)), None)
    if found is not None:
        return found, False
    architectures = files.config.get("architectures") or [""]
    known = str(files.config.get("model_type")).startswith("qwen3")
    return (QWEN3, not known) if known or "ForCausalLM" in str(architectures[0]) else (None, False)


def encoded(prompt: RerankPrompt, encode: Encode) -> Prompt:
    """Returns the prompt with the token ids of its fixed texts."""
    prefix, suffix = encode([prompt.prefix, prompt.suffix])
    return Prompt(tuple(prefix), tuple(suffix), prompt.body, prompt.instructed)


def scored_tokens(prompt: RerankPrompt, files: PoolingFiles, encode: Encode) -> list[int]:
    """Returns the id of the token whose logit is the score, after that of the token whose logit is subtracted, if any.

    They are those of sentence-transformers' module, those of config.json in vLLM's form, or those of the family.

    Args:
        prompt: The prompt of the family.
        files: The settings in the files of the model.
        encode: Returns the token ids of texts.

    Raises:
        StartError: A word is not a token of the model.
    """
    if files.scored_tokens:
        return files.scored_tokens
    named = files.config.get("classifier_from_token")
    words = named if isinstance(named, list) and len(named) in (1, 2) else prompt.words
    ids = encode([str(word) for word in words])
    if wrong := [str(word) for word, one in zip(words, ids, strict=True) if len(one) != 1]:
        raise StartError(f"--task rerank: {wrong[0]} is not a token of this model")
    return [one for [one] in ids]
