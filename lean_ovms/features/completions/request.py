"""Reads the body of a completions request.

The prompt may be a string, a list of strings, a list of token ids or a list of such lists.

https://platform.openai.com/docs/api-reference/completions
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...api.fields import Field, Values
from ...api.generation.common_fields import NUM_LOGPROBS, PROMPT_LOGPROBS, RESPONSE_FIELDS, RESPONSE_FORMAT, STRUCTURED
from ...api.generation.sampling import SAMPLING, GenerationFields, token_ids
from ...api.router import follows_ovms
from ...api.schemas import PROMPT
from ...api.services import Services
from ...config import Config
from ...errors import BadRequest, counted
from ...models.generation import Generation
from ...types import Json, Request, TextPrompt, TokenPrompt
from ..chat.chunks import ChunkOptions
from ..chat.generation import BodyReader, GenerationBody, check_sequences
from ..chat.logprobs import ID_BYTES, LogprobsRequest
from .fim import filled_in
from .several import start_prompts

NOT_WITH_VISION = "VLM Servable does not support the /completions endpoint. Use /chat/completions or /responses."
DEFAULT_MAX_TOKENS = 16
"""The default of OpenAI and vLLM, without which a text that does not end would fill the context."""
FIELDS = (
    Field("prompt", "any",
        "a string, an array of strings, an array of token ids, or an array of such arrays",
        required=True, schema=PROMPT),
    replace(SAMPLING.named("max_tokens"),
        help=f"maximum number of generated tokens (default: {DEFAULT_MAX_TOKENS}; under /v3 as many as fit)"),
    Field("echo", "bool", "begin the answer with the prompt", default=False),
    Field("suffix", "string", "text after the generated text, for models that fill in the middle"),
    NUM_LOGPROBS,
    PROMPT_LOGPROBS,
    Field("add_special_tokens", "bool", "let the tokenizer add special tokens such as BOS", default=True),
)  # fmt: skip


_SAMPLING = tuple(field for field in SAMPLING if field.name != "max_tokens")
ALL_FIELDS = GenerationFields((*RESPONSE_FIELDS, *FIELDS, RESPONSE_FORMAT, *STRUCTURED, *_SAMPLING))
TokenPrompts = Sequence[TextPrompt | TokenPrompt]
MAX_ECHOED = 8 << 20
"""The most bytes of prompts in a response, since they are written in one call, which takes 1 ms for each MB."""


@dataclass(slots=True, kw_only=True)
class CompletionRequest:
    """A parsed completions request. It is never changed."""

    prompts: TokenPrompts
    """The prompts."""
    suffix: str
    """The text after the generated text; "" if there is none."""
    generation: GenerationBody
    """The parameters of the generation."""
    echo: bool
    """Whether the answer begins with the prompt."""
    echoed: int
    """The approximate size of the prompts in the answer, in bytes."""
    score_only: bool
    """Whether nothing is generated, since max_tokens is 0 and only the prompt is echoed."""
    options: ChunkOptions
    """The options for the form of the response."""


def max_tokens_of(request: Request) -> int:
    """Returns the default of max_tokens for a request; 0 for as many tokens as fit the context."""
    return 0 if follows_ovms(request) else DEFAULT_MAX_TOKENS


def parse_completion(body: Json, services: Services, default_max_tokens: int) -> CompletionRequest:
    """Reads the body of a completion request. Raises RequestError."""
    reader = BodyReader(ALL_FIELDS, body, services, other_clients=True)
    values = reader.values
    if values["suffix"] and (values["echo"] or values["prompt_logprobs"] is not None):
        raise BadRequest("suffix cannot be combined with echo or prompt_logprobs", param="suffix")
    score_only = values["max_tokens"] == 0
    if score_only and not values["echo"]:
        raise BadRequest("max_tokens value should be greater than 0 unless echo is set", param="max_tokens")
    number = values["logprobs"]
    generation = reader.generation(
        {"max_tokens": 1} if score_only else {},  # the engine generates at least one token, which is not shown
        logprobs=LogprobsRequest(
            chosen=number is not None,  # 0 also requests log probabilities
            top=number or 0,
            param="logprobs",
            prompt=values["prompt_logprobs"],
            echoed=values["echo"],
        ),
        parsed=False,
        default_max_tokens=default_max_tokens,
    )
    prompts = read_prompts(values, services.config)
    check_sequences(len(prompts), generation.sampling, services.config)
    single = len(prompts) == generation.sampling.n == 1
    options = ChunkOptions.of(values, generation, services.config, single=single)
    return CompletionRequest(
        prompts=prompts,
        suffix=values["suffix"] or "",
        generation=generation,
        echo=values["echo"],
        echoed=_echoed(prompts, generation.sampling.n, echo=values["echo"], ids=options.token_ids),
        score_only=score_only,
        options=options,
    )


def _echoed(prompts: TokenPrompts, n: int, *, echo: bool, ids: bool) -> int:
    """Returns the approximate bytes of the prompts that the choices repeat in the response. Raises BadRequest."""
    if not (echo or ids):
        return 0
    parts = [len(p.text) if isinstance(p, TextPrompt) else ID_BYTES * len(p.tokens) for p in prompts]
    size = n * sum(parts)
    if size > MAX_ECHOED:
        what = f"{counted(len(parts), 'prompt')} in {counted(n, 'answer')} each"
        param = "echo" if echo else "return_token_ids"
        raise BadRequest(f"{param}: {what} would take {size} bytes; the limit is {MAX_ECHOED}", param=param)
    return size


def read_prompts(values: Values, config: Config) -> TokenPrompts:
    """Returns the prompts of a body. Raises BadRequest."""
    prompt = values["prompt"]
    special = values["add_special_tokens"]
    if prompt is None or prompt in ("", []):
        raise BadRequest("prompt is missing" if prompt is None else "prompt is empty", param="prompt")
    if isinstance(prompt, str):
        return [TextPrompt(prompt, special)]
    if not isinstance(prompt, list):
        raise BadRequest("prompt is not a string, an array of strings or an array of token ids", param="prompt")
    if type(prompt[0]) in (int, float):
        return [TokenPrompt(token_ids(prompt, "prompt"))]
    if len(prompt) > config.max_prompts:
        raise BadRequest(
            f"prompt has {len(prompt)} entries, more than this server's limit of {config.max_prompts} (--max_prompts)",
            param="prompt",
        )
    return [_one_prompt(item, i, special) for i, item in enumerate(prompt)]


def _one_prompt(item: Any, index: int, special: bool) -> TextPrompt | TokenPrompt:
    param = f"prompt[{index}]"
    if not item:
        raise BadRequest(f"{param} is empty", param=param)
    if isinstance(item, str):
        return TextPrompt(item, special)
    if isinstance(item, list):
        return TokenPrompt(token_ids(item, param))
    raise BadRequest(f"{param} is not a string or an array of token ids", param=param)


async def start(completion: CompletionRequest) -> tuple[CompletionRequest, list[Generation]]:
    """Starts a generation for each prompt. Returns them, and the request as it was started. Raises RequestError.

    If one cannot start, all are closed.
    """
    prompts: Iterable[TextPrompt | TokenPrompt] = completion.prompts
    if completion.suffix:
        generation, prompts = await filled_in(completion.generation, completion.prompts, completion.suffix)
        completion = replace(completion, generation=generation)
    if completion.generation.model.image_tokens is not None:
        raise BadRequest(NOT_WITH_VISION, param="model")
    scored = completion.generation.logprobs.prompt is not None
    want = completion.echo or completion.options.token_ids or scored
    return completion, await start_prompts(completion.generation, prompts, echo=want)
