"""An engine that plays a script in this process: with real reply queues and a vocabulary of bytes, no child and no
clock.

Token ids 0-255 are bytes, and 256 is the end of text. A script is a list of steps. A step is a list of (sequence, text,
reason), an error, or a record about the prompt, whose id is filled in. A script may be made for each request from its
prompt and sampling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from lean_ovms.engine import protocol
from lean_ovms.engine.client.replies import ReplyRouter, ReplyStream
from lean_ovms.engine.generation import request_validator
from lean_ovms.errors import RequestError, from_wire
from lean_ovms.features.disk_cache.records import BlocksOnDisk, DiskCacheAction
from lean_ovms.features.slots.records import SlotAction, SlotDone
from lean_ovms.types import Image, SamplingParams
from lean_ovms.types.engine import EngineRequest, ModelInfo, Vocabulary
from tests.engine_client_fakes import FakeEngineClient
from tests.in_range import assert_complete

EOS = 256
TURNS = 4
"""Iterations of the loop between two steps, so that an iterating client gets each step separately."""

Step = list[tuple[int, str, "str | None"]]
Script = list["Step | RequestError | protocol.Prefilled | protocol.Progress | protocol.Drafted"]

INFO = ModelInfo(
    vocab_size=257,
    context_length=1000,
    kv_blocks=100,
    block_size=32,
    eos_token_ids=[EOS],
    eos_token="<eos>",
    chat_template="{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}",
    prefix_caching=True,
    versions={"openvino_genai": "fake"},
)


def encode(text: str) -> list[int]:
    """Returns the byte tokens of a text."""
    return list(text.encode())


def likeliest(most: int, named: tuple[int, ...] = ()) -> list[tuple[int, float]]:
    """Returns A, B, C, ... or the named ids, each a quarter less likely than the one before."""
    return [(token, -(place + 1) / 4) for place, token in enumerate(named or range(65, 65 + most))]


def say(*pieces: str, reason: str = "stop", sequences: int = 1) -> Script:
    """Returns a script with each piece in a step of its own, for every sequence."""
    last = len(pieces) - 1
    return [[(s, p, reason if i == last else None) for s in range(sequences)] for i, p in enumerate(pieces)]


class FakeEngine(FakeEngineClient):
    """The part of EngineClient that models use.

    `submitted`, `constraints`, `images`, `audio` and `cancelled` have the arguments of calls. Requests with a
    constraint are rejected with `bad_grammar`; `notices` has what is not imposed of a constraint.
    """

    def __init__(self, script: Callable[[Any, SamplingParams], Script] | Script) -> None:
        pieces = [bytes([i]) for i in range(256)] + [b"<eos>"]
        super().__init__(INFO, Vocabulary(pieces=pieces, special=frozenset([EOS])))
        self.script = script if callable(script) else lambda prompt, sampling: script
        self.bad_grammar: RequestError | None = None
        self.notices: list[str] = []
        self.constraints: list[str] = []
        self.images: list[tuple[Image, ...]] = []
        self.audio: list[tuple[bytes, ...]] = []
        self.submitted: list[tuple[Any, SamplingParams]] = []
        self.origins: list[tuple[str, int, int]] = []  # client, group and priority of each request
        self.adapters: list[str] = []
        self.truncated: list[tuple[int | None, str]] = []
        self.cancelled: list[protocol.Cancel] = []
        self.failed_blocks = 0  # the number of blocks that could not be saved
        self.resets: list[bool] = []  # resets of the prefix cache, and whether also on disk
        self.slot_actions: list[tuple[str, int, str]] = []
        self.mail = ReplyRouter(self._sent)

    async def call(self, make: Callable[[int], Any]) -> Any:
        """Answers a command about the cached prompts."""
        self.refuse()
        match make(1):
            case protocol.ResetPrefixCache() as command:
                self.resets.append(command.external)
                return protocol.PrefixCacheReset(1)
            case DiskCacheAction() as command:
                return BlocksOnDisk(1, 3 if command.action == "save" else 9, 1000, self.failed_blocks)
            case SlotAction() as command:
                if command.action != "look":
                    self.slot_actions.append((command.action, command.slot, command.file))
                return SlotDone(1, 64, 0 if command.action == "erase" else 1000, 1.5)
            case command:
                raise AssertionError(command)

    def _sent(self, record: protocol.Record) -> None:
        assert isinstance(record, protocol.Cancel)
        self.cancelled.append(record)

    async def submit(self, request: EngineRequest) -> ReplyStream:
        if self.state != "ready":
            raise self.unavailable()
        self.refuse()
        prompt, sampling = request.prompt, request.sampling
        if request.constraint and self.bad_grammar is not None:
            raise from_wire(self.bad_grammar.to_wire())
        assert_complete(sampling)
        request_validator.read_sampling(asdict(sampling), INFO.vocab_size)
        if not isinstance(prompt, str):
            request_validator.check_token_ids(prompt, INFO.vocab_size, "prompt")
        self.submitted.append((prompt, sampling))
        self.origins.append((request.client, request.group, request.priority))
        self.adapters.append(request.adapter)
        self.truncated.append((request.truncate, request.truncation_side))
        self.images.append(tuple(request.images))
        self.audio.append(tuple(request.audio))
        self.constraints.append(request.constraint)
        tokens = list(prompt.encode()) if isinstance(prompt, str) else prompt
        reply = self.mail.open(sampling.n)
        notices = self.notices if request.constraint else []
        self.mail.deliver([protocol.Accepted(reply.id, len(tokens), tokens if request.want_tokens else None, notices)])
        if sampling.prompt_logprobs:
            scored = protocol.PromptLogprobs(reply.id, [None] + [-1.0] * (len(tokens) - 1))
            if self.info.capabilities:
                scored.ranks = [2] * (len(tokens) - 1)
                scored.top = [likeliest(sampling.prompt_top_logprobs) for _ in tokens[1:]]
            self.mail.deliver([scored])
        self._play(reply.id, list(self.script(prompt, sampling)), sampling)
        return reply

    def _play(self, number: int, script: Script, sampling: SamplingParams) -> None:
        if not script or not self.mail.busy:
            return
        step = script.pop(0)
        if isinstance(step, RequestError):
            self.mail.deliver([protocol.Failed(number, step.to_wire())])
            return
        records: list[protocol.Record] = []
        if isinstance(step, protocol.Prefilled | protocol.Progress | protocol.Drafted | protocol.SpokenTokens):
            step.id = number
            records.append(step)
            step = []
        for sequence, text, reason in step:
            tokens = encode(text) + ([EOS] if reason == "stop" else [])
            logprobs = [-0.5] * len(tokens) if sampling.logprobs else None
            fields = (number, sequence, tokens, logprobs, reason)
            if sampling.top_logprobs or sampling.logprob_token_ids:
                top = [likeliest(sampling.top_logprobs, sampling.logprob_token_ids) for _ in tokens]
                records.append(protocol.DetailedTokens(*fields, top))
            else:
                records.append(protocol.Tokens(*fields))
        self.mail.deliver(records)
        self._after(TURNS, partial(self._play, number, script, sampling))

    def _after(self, turns: int, what: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(what) if turns == 1 else loop.call_soon(self._after, turns - 1, what)

    async def encode(self, texts: list[str], add_special_tokens: bool, client: str = "") -> list[list[int]]:
        return [([EOS] if add_special_tokens else []) + list(t.encode()) for t in texts]

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        request_validator.check_token_ids(tokens, INFO.vocab_size, "tokens")
        hidden = self.vocabulary.special if skip_special_tokens else frozenset()
        return b"".join(self.vocabulary.pieces[t] for t in tokens if t not in hidden).decode("utf-8", "replace")
