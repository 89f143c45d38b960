"""Makes the records by which the front end hears of each step. This is the hot path: once per token."""

from __future__ import annotations

from ...errors import RequestError
from ..generation.sequence import GenerationRequest
from ..protocol import ABSENT, DetailedTokens, Drafted, Failed, Prefilled, Progress, PromptLogprobs, Record, Tokens
from .sampling.beam_search import Hypothesis
from .sampling.logprobs import TokenLogprobs
from .sequence import Sequence


class Outputs:
    """Makes the records of new results."""

    def __init__(self, requests: dict[int, GenerationRequest]) -> None:
        """Begins without results. requests: those that are not finished, by id; finished ones are removed."""
        self.out: list[Record] = []
        """The records, the same list for ever."""
        self.changed: list[Sequence] = []
        """Sequences with results that have no record yet."""
        self.hypotheses: dict[Sequence, list[Hypothesis]] = {}
        """The texts of finished beam searches, best first, by the sequence that began the search."""
        self._requests = requests

    def prompt(self, sequence: Sequence, tokens: int, taken_ms: float, *, complete: bool) -> None:
        """Makes the record of how much of a prompt is computed, if the request wants that, and of its end.

        Args:
            sequence: the sequence of the prompt.
            tokens: the tokens that are computed, or were cached.
            taken_ms: the milliseconds since it was started.
            complete: whether that is the whole prompt.
        """
        number = sequence.request.id
        cached = min(one.cached for one in sequence.request.sequences if one.cached >= 0)  # not of another choice's
        if sequence.request.sampling.report_progress and not sequence.index and tokens > sequence.reported:
            sequence.reported = tokens
            self.out.append(Progress(number, tokens, cached, taken_ms))
        if complete:
            self.out.append(Prefilled(number, cached, taken_ms))

    def fail(self, request: GenerationRequest, error: RequestError) -> bool:
        """Makes the record that a request has failed; False if the request has ended already."""
        if self._requests.pop(request.id, None) is None:
            return False
        self.out.append(Failed(request.id, error.to_wire()))
        return True

    def emit(self) -> None:
        """Makes the records of all sequences in `changed`."""
        changed, self.changed, out = self.changed, [], self.out
        for sequence in changed:
            request = sequence.request
            if sequence.index not in request.unfinished or not sequence.new_ids:
                if sequence in self.hypotheses:
                    self._emit_hypotheses(sequence, self.hypotheses.pop(sequence))
                continue
            ids, sequence.new_ids = sequence.new_ids, []
            if sequence.echo:
                self._emit_prompt(sequence, sequence.prompt_details)
            if sequence.reason is not None and sequence.params.lookahead:
                out.append(Drafted(request.id, sequence.drafted, sequence.accepted))
            out.append(_tokens(request, sequence.index, ids, sequence.new_details, sequence.reason))
            if sequence.new_details:
                sequence.new_details = []
            if sequence.reason is not None:
                request.unfinished.discard(sequence.index)
                if not request.unfinished:
                    self._requests.pop(request.id, None)

    def _emit_prompt(self, sequence: Sequence, details: list[TokenLogprobs]) -> None:
        sequence.echo = False
        record = PromptLogprobs(sequence.request.id, [None, *(detail.logprob for detail in details)])
        record.ranks, record.top = [detail.rank for detail in details], [detail.top for detail in details]
        self.out.append(record)

    def _emit_hypotheses(self, first: Sequence, found: list[Hypothesis]) -> None:
        """Records the n best completions of a finished beam search, or all there are, best first."""
        request = first.request
        if first.echo and request.unfinished:
            self._emit_prompt(first, first.prompt_details)
        for rank, text in enumerate(found[: request.sampling.n]):
            if rank not in request.unfinished:
                continue
            reason = "stop" if text.ids and text.ids[-1] in first.stops else "length"
            self.out.append(_tokens(request, rank, text.ids, text.details, reason))
        absent = request.unfinished.intersection(range(len(found), request.sampling.n))
        self.out += [Tokens(request.id, rank, [], None, ABSENT) for rank in sorted(absent)]
        request.unfinished.clear()
        self._requests.pop(request.id, None)


def _tokens(
    request: GenerationRequest, index: int, ids: list[int], details: list[TokenLogprobs], reason: str | None
) -> Tokens:
    if not request.sampling.logprobs:
        return Tokens(request.id, index, ids, None, reason)
    values = [detail.logprob for detail in details]
    if not request.details:
        return Tokens(request.id, index, ids, values, reason)
    record = DetailedTokens(request.id, index, ids, values, reason)
    record.top = [detail.top for detail in details]
    return record
