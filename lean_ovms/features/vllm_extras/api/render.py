"""POST …/chat/completions/render and …/completions/render: return vLLM's bodies for /inference/v1/generate.

https://docs.vllm.ai/en/stable/serving/online_serving/renderer/. They tell a gateway the token ids of a prompt. Nothing
is generated.
"""

from __future__ import annotations

from ....api.fields import RouteDoc
from ....api.response import warning_headers, written
from ....api.services import Services
from ....errors import BadRequest, prompt_too_long
from ....types import Json, OutputConstraint, Prompt, Request, Response
from ...chat import request as chat_request
from ...chat.content import refuse_media
from ...chat.generation import GenerationBody
from ...chat.logprobs import ID_BYTES
from ...completions import request as completion_request

NO_IMAGES = "prompts with images have no token ids; chat/completions/input_tokens counts their tokens"
NO_CALLS = "sampling_params do not constrain tool calls"
SAME = (
    *("n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("min_tokens", "stop_token_ids", "ignore_eos", "allowed_token_ids", "bad_words", "logprob_token_ids"),
    "thinking_token_budget",
)
"""The fields that have the same name in SamplingParams and in the body."""


@RouteDoc("A chat request as a body for /inference/v1/generate", body=chat_request.ALL_FIELDS, other_clients=True)
async def handle_chat(request: Request, services: Services) -> Response:
    def read(body: Json, services: Services) -> tuple[chat_request.ChatRequest, Json]:
        chat = chat_request.parse_chat(body, services)
        refuse_media(chat.prompt.messages, NO_IMAGES, services.config.composition)
        return chat, body

    chat, body = await services.parse_body(request, read)
    shown = await _rendered(chat.generation, body, chat.prompt, chat.options.response_id("chatcmpl"))
    return await _answer(shown, chat.generation, services)


@RouteDoc(
    "A completions request as a body for /inference/v1/generate, one for each prompt",
    body=completion_request.ALL_FIELDS,
    other_clients=True,
    answer="array",
)
async def handle_completions(request: Request, services: Services) -> Response:
    default = completion_request.max_tokens_of(request)

    def read(body: Json, services: Services) -> tuple[completion_request.CompletionRequest, Json]:
        parsed = completion_request.parse_completion(body, services, default_max_tokens=default)
        if parsed.suffix:
            raise BadRequest("suffix cannot be combined with render", param="suffix")
        return parsed, body

    parsed, body = await services.parse_body(request, read)
    shown = [
        await _rendered(parsed.generation, body, prompt, parsed.options.response_id("cmpl"))
        for prompt in parsed.prompts
    ]
    return await _answer(shown, parsed.generation, services)


async def _answer(shown: Json | list[Json], generation: GenerationBody, services: Services) -> Response:
    tokens = sum(len(one["token_ids"]) for one in (shown if isinstance(shown, list) else [shown]))
    constraint = generation.output.constraint
    notices = [NO_CALLS] if constraint is not None and constraint.tool_calls else []
    response = await written(services.offload, ID_BYTES * tokens, lambda: shown)
    response.headers.extend(generation.headers + warning_headers(notices))
    return response


async def _rendered(generation: GenerationBody, body: Json, prompt: Prompt, request_id: str) -> Json:
    """Returns the body for /inference/v1/generate that is equivalent to a request.

    Args:
        generation: The request, without its prompt.
        body: The body of the request, which has been checked.
        prompt: The prompt.
        request_id: The id for the new body.

    Raises:
        RequestError: The request uses beam search, or the prompt is too long.
    """
    sampling, stream = generation.sampling, generation.stream
    if sampling.beams > 1:
        raise BadRequest("beam search cannot be combined with render", param="use_beam_search")
    tokens, most = await _token_ids(generation, prompt)
    return {
        "request_id": request_id,
        "model": generation.model.name,
        "token_ids": tokens,
        "features": None,
        "sampling_params": _sampling_params(generation, body, most),
        "stream": stream,
        "stream_options": body.get("stream_options") if stream else None,
        "cache_salt": sampling.cache_salt or None,
        "priority": generation.priority,
    }


async def _token_ids(generation: GenerationBody, prompt: Prompt) -> tuple[list[int], int]:
    """Returns the token ids of a prompt, truncated, and how many tokens may follow. Raises RequestError."""
    tokens, model = await generation.model.token_ids(prompt), generation.model.serving()
    if (most := generation.truncate) is not None:
        most = model.max_prompt_tokens(generation.sampling) if most == -1 else most
        tokens = tokens[:most] if generation.truncation_side == "right" else tokens[-most:]
    if (left := model.max_tokens - len(tokens)) < 1:
        raise prompt_too_long(len(tokens), model.max_tokens)
    return tokens, left


def _sampling_params(generation: GenerationBody, body: Json, most: int) -> Json:
    """Returns the fields of vLLM's SamplingParams that are set.

    Args:
        generation: The request, with its sampling parameters.
        body: The body of the request, which shows whether it sets a seed.
        most: The most tokens that may follow the prompt.
    """
    sampling, output, logprobs = generation.sampling, generation.output, generation.logprobs
    found = {name: getattr(sampling, name) for name in SAME} | {
        "max_tokens": min(sampling.max_tokens or most, most),
        "seed": sampling.seeds[0] if body.get("seed") not in (None, -1) else None,
        "stop": output.stop,
        "include_stop_str_in_output": output.include_stop,
        "skip_special_tokens": output.skip_special_tokens,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias},
        "logprobs": logprobs.top if logprobs.chosen else None,
        "prompt_logprobs": logprobs.prompt,
        "structured_outputs": None if output.constraint is None else _structured_outputs(output.constraint),
    }
    if sampling.repetition is not None:
        shortest, longest, times = sampling.repetition
        found["repetition_detection"] = {"min_pattern_size": shortest, "max_pattern_size": longest, "min_count": times}
    return {name: value for name, value in found.items() if value not in (None, (), {})}


def _structured_outputs(constraint: OutputConstraint) -> Json | None:
    """Returns vLLM's structured_outputs for a constraint; None if any text is allowed."""
    match constraint.format:
        case None:
            return None
        case {"type": "json_schema", "json_schema": schema}:
            return {"json": schema}
        case {"type": "regex", "pattern": pattern}:
            return {"regex": pattern}
        case {"type": "grammar", "grammar": grammar}:
            return {"grammar": grammar}
        case form:
            return {"structural_tag": {"type": "structural_tag", "format": form}}
