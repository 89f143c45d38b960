"""One choice while it is generated: records of tokens become deltas. Hot path: once per token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from ..engine.protocol import REPETITION, DetailedTokens, Tokens
from ..text.decode.detokenizer import Detokenizer, WindowDetokenizer
from ..text.decode.stop_strings import StopMatcher
from ..types import Delta, Event, Reasoning, Text, TokenLogprob, ToolCallDelta, ToolCallStart

if TYPE_CHECKING:
    from ..text.parsers import Parser


REPETITION_DETECTED = "repetition_detected"
"""vLLM's stop_reason of a text that ends because it repeats itself."""


@dataclass(slots=True, kw_only=True)
class OutputDecoder:
    """The state of one choice: its detokenizer, stop strings, parser and token counts."""

    index: int
    detokenizer: Detokenizer
    window: WindowDetokenizer | None
    skip_special: bool
    stops: StopMatcher | None
    parser: Parser | None
    min_tokens: int
    stop_ids: frozenset[int]
    special: frozenset[int]
    ended_by: str = ""
    tokens: int = 0
    reasoning_tokens: int = 0
    thinking: bool = False
    finish: str = ""
    _plain: bool = field(init=False)  # nothing to find in its text

    def __post_init__(self) -> None:
        self._plain = self.stops is None and self.parser is None

    def read(self, record: Tokens) -> Delta:
        """The delta of a record, by the detokenizer's table."""
        tokens, feed = record.tokens, self.detokenizer.feed
        if self._plain:
            text = feed(tokens)
            if record.reason is None and record.logprobs is None:  # nearly every token
                self.tokens += len(tokens)
                return Delta(self.index, [Text(text)] if text else [], tokens)
            texts = [text]
        else:  # one by one, so that counts do not depend on how they were batched
            texts = [feed([token]) for token in tokens] or [""]
        if record.reason is not None:
            texts[-1] += self.detokenizer.flush()
        return self.decode(record, texts)

    def decode(self, record: Tokens, texts: list[str]) -> Delta:
        """The delta of a record. texts: the text of each of its tokens, or one text of all."""
        size = len(record.tokens)
        delta = Delta(self.index)
        step = 1 if len(texts) == size else size
        done = 0
        for text in texts:
            done += step
            self.tokens += step
            if done == size and record.reason is not None:
                self._finish(delta, record)
            if self.stops is not None and self.tokens > self.min_tokens:
                text = self._until_stop(delta, self.stops, text)
            self._parse(delta, text, step)
            if delta.finish is not None:
                self.finish = delta.finish
                break
        delta.tokens = record.tokens[:done]
        if record.logprobs is not None:
            delta.logprobs = [self.entry(t, p) for t, p in zip(delta.tokens, record.logprobs, strict=False)]
            if isinstance(record, DetailedTokens):
                for scored, others in zip(delta.logprobs, record.top, strict=False):
                    scored.top = [self.entry(int(token), logprob) for token, logprob in others]
        return delta

    def _finish(self, delta: Delta, record: Tokens) -> None:
        delta.finish = record.reason
        if record.reason == REPETITION:
            delta.finish, delta.stop = "stop", REPETITION_DETECTED
            return
        last = record.tokens[-1] if record.tokens else None
        if record.reason != "stop" or last is None:
            return
        if last in self.stop_ids:
            delta.stop = last
        if last in self.special:
            self.ended_by = self.detokenizer.piece(last).decode("utf-8", "replace")

    @staticmethod
    def _until_stop(delta: Delta, stops: StopMatcher, text: str) -> str:
        text, matched = stops.feed(text)
        if matched is not None:
            delta.finish, delta.stop = "stop", matched
        elif delta.finish:
            text += stops.flush()
        return text

    def _parse(self, delta: Delta, text: str, tokens: int) -> None:
        if self.parser is None:
            if text:
                delta.events.append(Text(text))
            return
        ended_by = ""
        if self.ended_by and text.endswith(self.ended_by):
            ended_by, text = self.ended_by, text.removesuffix(self.ended_by)
        events = self.parser.feed(text) if text else []
        if delta.finish:
            events += self.parser.finish(ended_by)
        for event in events:
            self.thinking = isinstance(event, Reasoning)
            _append(delta.events, event)
        # A token without text yet (a part of a tag or of a character) counts to what went before.
        self.reasoning_tokens += tokens * self.thinking

    def entry(self, token: int, logprob: float | None) -> TokenLogprob:
        data = self.detokenizer.piece(token)
        # A positive value is the engine's placeholder for "not known".
        known = logprob is not None and logprob <= 0
        return TokenLogprob(token, data.decode("utf-8", "replace"), data, logprob if known else None)


def _append(events: list[Event], event: Event) -> None:
    """Add an event, joined to the last one if that is of the same kind and tool call."""
    last = events[-1] if events else None
    joins = type(last) is type(event) and not isinstance(event, ToolCallStart)
    if joins and isinstance(event, ToolCallDelta):
        joins = cast(ToolCallDelta, last).index == event.index
    if joins:
        cast(Text, last).text += cast(Text, event).text
    else:
        events.append(event)
