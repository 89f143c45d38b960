"""Text generation as a task of the worker: turns commands into requests, and computes steps for all sequences.

It works with any backend.Backend, and is independent of openvino.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property

from ...config import EngineConfig
from ...errors import BadRequest, RequestError, TooManyRequests, counted, requests_waiting
from .. import protocol
from ..task import Task, busy
from . import request_validator
from .backend import Backend, ConstraintQueue, WaitingRequests
from .fair_queue import GenerationRequest
from .request_validator import BadWords, RequestValidator
from .worker_thread import TokenizeQueue

MAX_ENCODE_CHARACTERS = 4 << 20
"""The most characters in one Encode command; tokenizing them takes up to three seconds, without any other token."""
TURN_CHARACTERS = 1 << 16
"""The characters to tokenize for each step, where there is a choice; they take a tokenizer 2 to 45 ms."""
CONSTRAINT_CHARACTERS = 16
"""The number of characters of a grammar that take as long to process as one character takes to tokenize."""
CALL_CHARACTERS = 64
"""The fixed cost of tokenizing any text, expressed in characters."""
SUBMIT_CHARACTERS = 2048
"""The fixed cost of a request, expressed in characters; a list of 128 short prompts counts as 128 requests. Each entry
of a list in a request, such as an allowed token, costs one more."""


class GenerationTask(Task):
    """Generates text with one backend."""

    def __init__(self, backend: Backend, config: EngineConfig, wake: Callable[[], None] = lambda: None) -> None:
        """Creates a task without requests.

        Args:
            backend: Computes the model.
            config: The engine's configuration.
            wake: Wakes up the engine's loop; called from other threads.
        """
        super().__init__(backend.info, backend.vocabulary)
        self.backend = backend
        self.config = config
        self.validator = RequestValidator(backend)
        self._wake = wake
        self._compiles_grammars = False  # whether a request had a grammar, so that `grammars` exists
        self.tokenize_queue = TokenizeQueue(backend, self.validator, wake)
        self._other_queues: list[WaitingRequests] = [self.tokenize_queue]
        if backend.image_queue is not None:
            self._other_queues.append(backend.image_queue)
        self.out = backend.out
        self._characters_left = TURN_CHARACTERS  # to tokenize for this step
        self._refused_groups: deque[int] = deque(maxlen=64)  # the latest

    @cached_property
    def grammars(self) -> ConstraintQueue:
        """The queue of requests that wait for their grammar, made for the first of them. Raises GrammarInvalid."""
        queue = self.backend.grammars.new_queue(self._wake, self.config)
        self._other_queues.append(queue)
        self._compiles_grammars = True
        return queue

    @property
    def _compiling(self) -> bool:
        return self._compiles_grammars and self.grammars.compiling

    @property
    def idle(self) -> bool:
        return self.backend.idle

    @property
    def computing(self) -> bool:
        return self.backend.computing

    @property
    def accepts_commands(self) -> bool:
        """Whether another command may be taken now: for each step TURN_CHARACTERS are tokenized."""
        return self._characters_left > 0 or self.backend.idle

    def close(self) -> None:
        self.backend.close()

    def stats(self) -> dict[str, int]:
        stats: dict[str, int] = asdict(self.backend.stats())
        stats["queued"] += self._waiting_elsewhere()
        return stats

    def admit(self) -> None:
        """Starts sequences, first those whose grammar has just been compiled."""
        if not self.backend.started:
            self._characters_left = TURN_CHARACTERS
        if self.tokenize_queue.waiting:
            self._process_tokenized()
        if self._compiles_grammars and (self.grammars.waiting or self.grammars.compiling):
            self._process_grammars()
        self.backend.admit(compiling=self._compiling)

    def step(self) -> None:
        self.backend.step()

    # --- commands

    def _handle(self, command: protocol.Record) -> None:
        match command:
            case protocol.Submit():
                grammar = len(command.constraint) // CONSTRAINT_CHARACTERS
                listed = sum(len(value) for value in command.sampling.values() if isinstance(value, list))
                self._characters_left -= SUBMIT_CHARACTERS + grammar + listed
                if not self._tokenize_in_thread(command):
                    self._characters_left -= len(command.prompt)
                    self._submit(command)
            case protocol.Cancel():
                self.backend.cancel(command.id, command.index)
                self.tokenize_queue.cancel(command.id)
                if self._compiles_grammars:
                    self.grammars.cancel(command.id)
            case protocol.Encode():
                self._encode(command)
            case protocol.Decode():
                request_validator.check_token_ids(command.tokens, self.backend.info.vocab_size, "tokens")
                text = self.backend.decode(command.tokens, command.skip_special_tokens)
                self.out.append(protocol.Decoded(command.id, text))
            case _:
                self.backend.handle(command)

    def _submit(
        self, submit: protocol.Submit, tokens: list[int] | None = None, bad_words: BadWords | None = None
    ) -> None:
        """Accepts a request, lets it wait for its grammar, or refuses it.

        Args:
            submit: The command.
            tokens: The ids of the prompt, if the thread has tokenized it.
            bad_words: The ids of the bad words, if the thread has tokenized them.
        """
        try:
            self._check_queue(submit)
            request = self.validator.request(submit, tokens, bad_words)
            if not request.constraint or self.grammars.add(submit, request):
                self._accept(submit, request)
        except Exception as error:  # an error in one request must not end the loop
            self._refuse(submit, error)

    def _tokenize_in_thread(self, command: protocol.Submit | protocol.Encode) -> bool:
        """Queues a command with a long text for the tokenizing thread; returns whether it did. Raises RequestError."""
        if (work := self.tokenize_queue.work(command)) is None:
            return False
        if isinstance(command, protocol.Submit):
            self._check_queue(command)
        self.tokenize_queue.add(command, work)
        return True

    def _process_tokenized(self) -> None:
        """Continues with the commands whose texts the thread has tokenized."""
        for command, result in self.tokenize_queue.poll():
            if isinstance(result, RequestError):
                self._refuse(command, result)
            elif isinstance(command, protocol.Encode):
                self.out.append(protocol.Encoded.of(command.id, result.texts))
            else:
                self._submit(command, result.prompt, result.bad_words)

    def _process_grammars(self) -> None:
        """Accepts the requests whose grammar has been compiled, and refuses those whose grammar was rejected."""
        for submit, request, error in self.grammars.poll(self.backend.may_compile):
            if error is None:
                self._accept(submit, request)
            else:
                self._refuse(submit, error)

    def _accept(self, submit: protocol.Submit, request: GenerationRequest) -> None:
        try:
            self.backend.add(request)
        except Exception as error:  # an error in one request must not end the loop
            self._refuse(submit, error)
            return
        prompt = request.prompt
        wanted = submit.want_tokens and not submit.images  # there are no ids for an image
        notices = list(request.cost.notices) if request.cost is not None else []
        self.out.append(protocol.Accepted(submit.id, len(prompt), prompt if wanted else None, notices))

    def _waiting_elsewhere(self) -> int:
        """Returns the number of requests that wait for tokenization, a grammar or images."""
        return sum(queue.waiting for queue in self._other_queues)

    def _check_queue(self, submit: protocol.Submit) -> None:
        """Raises TooManyRequests if a request cannot be queued, before tokenization, so that a flood costs little.

        All prompts of one HTTP request are treated alike: if one is refused, all are. Once the first is accepted,
        further ones are refused only if the client has too many prompt tokens queued, and other requests of it wait.
        """
        client = self.backend.waiting.clients.get(submit.client)
        if client is not None and submit.group in client.groups:
            others = any(group.waiting for key, group in client.groups.items() if key != submit.group)
            if others and client.queued_tokens >= self.config.max_queued_tokens_per_client:
                self._refused_groups.append(submit.group)
                raise self._too_many_tokens(client.queued_tokens, client.queued)
            return
        if submit.group and submit.group in self._refused_groups:
            raise self._too_many("another prompt of this request was refused", self.config.max_queued_requests)
        if self._refusal_of(submit.client) is not None:
            if self.backend.started:
                self.backend.step()  # until its end no waiting sequence can start
            self.backend.admit(compiling=self._compiling)
            if error := self._refusal_of(submit.client):
                self._refused_groups.append(submit.group)
                raise error

    def _refusal_of(self, name: str) -> TooManyRequests | None:
        """Returns the error for one more request of a client; None if it can be queued.

        Even if the queue is full, a client may use its share of it, up to twice the limit in total, so that others
        cannot keep it out.
        """
        most, queue = self.config.max_queued_requests, self.backend.waiting
        total = queue.queued + self._waiting_elsewhere()
        if not total:
            return None
        client = queue.clients.get(name)
        mine, tokens = (client.queued, client.queued_tokens) if client is not None else (0, 0)
        mine += sum(other.waiting_of(name) for other in self._other_queues if other.waiting)
        if mine >= self.config.max_queued_requests_per_client:
            return self._too_many(requests_waiting(mine, " of this client"), mine)
        if tokens >= self.config.max_queued_tokens_per_client:
            return self._too_many_tokens(tokens, mine)
        share = max(1, most // (len(queue.clients) + (client is None)))
        if total >= (most if mine >= share else 2 * most):
            return self._too_many(requests_waiting(most), most)
        return None

    def _too_many_tokens(self, tokens: int, queued: int) -> TooManyRequests:
        said = counted(tokens, "prompt token of this client is already", "prompt tokens of this client are already")
        return self._too_many(f"{said} waiting", queued)

    def _too_many(self, why: str, queued: int) -> TooManyRequests:
        return busy(why, self.backend.waiting.retry_after_s(queued))

    def _encode(self, command: protocol.Encode) -> None:
        size = sum(map(len, command.texts))
        if size <= MAX_ENCODE_CHARACTERS and self._tokenize_in_thread(command):
            return
        self._characters_left -= size + CALL_CHARACTERS * len(command.texts)
        if size > MAX_ENCODE_CHARACTERS:
            raise BadRequest(f"the texts to tokenize have more than {MAX_ENCODE_CHARACTERS} characters")
        ids = [self.backend.encode(text, command.add_special_tokens) for text in command.texts]
        self.out.append(protocol.Encoded.of(command.id, ids))
