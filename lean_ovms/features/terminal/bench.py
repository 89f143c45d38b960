"""`lean-ovms bench [URL]`: puts a small load on a running server, and prints a report like that of `vllm bench serve`.

https://docs.vllm.ai/en/stable/cli/bench/serve.html. Prompts are random token ids, so that no two share a prefix.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ...cli.arguments import own, parse
from ...cli.commands import CommandParser, add_json, parser, print_json
from ...errors import CommandFailed, ExitStatus, StartError
from ..admin.client import ServerClient, connect, is_url, url_of

NOTES = """MODEL is a model of the server (default: its first one). Without URL, the server that runs with these
options on this machine, such as --rest_port 9000, is measured. TTFT is the time to the first token, TPOT
the time per token after the first of a request, and ITL the time between two chunks of a stream."""
PATIENCE_S = 3600.0
WIDTH = 50
IDS = range(100, 1000)
"""The token ids for prompts: they exist in every vocabulary, after the special tokens of most of them."""
COUNTS = {
    "num_prompts": (32, "number of requests"),
    "max_concurrency": (4, "number of concurrent requests"),
    "random_input_len": (128, "tokens per prompt"),
    "random_output_len": (64, "tokens per answer"),
}
"""The settings of a load by vLLM's names, with their defaults and help texts."""

TITLES = {
    "completed": "Successful requests",
    "failed": "Failed requests",
    "max_concurrency": "Maximum request concurrency",
    "duration": "Benchmark duration (s)",
    "total_input_tokens": "Total input tokens",
    "total_output_tokens": "Total generated tokens",
    "request_throughput": "Request throughput (req/s)",
    "output_throughput": "Output token throughput (tok/s)",
    "total_token_throughput": "Total token throughput (tok/s)",
}
TIMES = {"ttft": "Time to First Token", "tpot": "Time per Output Token (excl. 1st token)", "itl": "Inter-token Latency"}


@dataclass
class Timing:
    """The times measured for one request."""

    first: float = 0.0
    """The seconds until the first piece of the answer."""
    last: float = 0.0
    """The seconds until the last piece of the answer."""
    pieces: list[float] = field(default_factory=list)
    """The seconds between each two pieces."""
    prompt_tokens: int = 0
    """The number of prompt tokens."""
    tokens: int = 0
    """The number of tokens of the answer."""
    error: str = ""
    """The reason why the request failed, in which case nothing else was measured; empty if it did not."""


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs the load, prints the report, and returns 1 if any request failed. Raises StartError or CommandFailed."""
    if argv[:1] == ["serve"]:  # as in vllm bench serve
        argv = argv[1:]
    given, words, options = own(_arguments(), argv)
    url = words.pop(0) if words and is_url(words[0]) else ""
    wrong = next((name for name in COUNTS if getattr(given, name) < 1), None)
    if wrong:
        raise StartError(f"--{wrong} must be at least 1")
    config = parse(options, environ)
    client = connect(url or given.base_url, config)
    model = client.asked_for(config, given.model, words)
    url_of(words)
    client.timeout_s = PATIENCE_S
    source = random.Random(given.seed)
    prompts = [source.choices(IDS, k=given.random_input_len) for _ in range(given.num_prompts + 1)]
    warm = _request(client, model, prompts.pop(), given.random_output_len)
    if warm.error:
        raise CommandFailed(warm.error)
    begin = time.perf_counter()
    with ThreadPoolExecutor(given.max_concurrency) as threads:
        timings = list(threads.map(lambda prompt: _request(client, model, prompt, given.random_output_len), prompts))
    found = results(timings, time.perf_counter() - begin, given.max_concurrency)
    print_json(found) if given.json else print(report(found))
    errors = [timing.error for timing in timings if timing.error]
    if errors:
        print(f"lean_ovms bench: {errors[0]}", file=sys.stderr)
    return ExitStatus.FAILED if errors else ExitStatus.OK


def _arguments() -> CommandParser:
    result = add_json(parser("bench", NOTES))
    for name, (default, text) in COUNTS.items():
        result.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} (default: {default})")
    result.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random prompts (default: 0)")
    result.add_argument("--model", default="", metavar="NAME", help="model of the server (default: its first one)")
    result.add_argument("--base_url", default="", metavar="URL", help="the same as URL")
    return result


def _request(client: ServerClient, model: str, prompt: Sequence[int], tokens: int) -> Timing:
    """Sends one request, and measures the times of the pieces of its answer."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0,
            "stream_options": {"include_usage": True}}  # fmt: skip
    found = Timing()
    begin = before = time.perf_counter()
    try:
        with client.stream("/v1/completions", body) as events:
            for event in events:
                now = time.perf_counter()
                if usage := event.get("usage"):
                    found.prompt_tokens, found.tokens = usage["prompt_tokens"], usage["completion_tokens"]
                if not any(choice.get("text") for choice in event.get("choices", ())):
                    continue
                if found.first:
                    found.pieces.append(now - before)
                else:
                    found.first = now - begin
                found.last, before = now - begin, now
    except CommandFailed as error:
        return Timing(error=str(error))
    return found if found.first else Timing(error="the answer has no text")


def results(timings: Sequence[Timing], seconds: float, concurrency: int) -> dict[str, float]:
    """Returns the measurements by the names of vLLM's result files, in the order of the report.

    Args:
        timings: The times of all requests.
        seconds: The seconds from the first request to the last answer.
        concurrency: The most concurrent requests.
    """
    done = [timing for timing in timings if not timing.error]
    prompt_tokens, tokens = sum(one.prompt_tokens for one in done), sum(one.tokens for one in done)
    found: dict[str, float] = {
        "completed": len(done),
        "failed": len(timings) - len(done),
        "max_concurrency": concurrency,
        "duration": seconds,
        "total_input_tokens": prompt_tokens,
        "total_output_tokens": tokens,
        "request_throughput": len(done) / seconds,
        "output_throughput": tokens / seconds,
        "total_token_throughput": (prompt_tokens + tokens) / seconds,
    }
    times = {
        "ttft": [one.first for one in done],
        "tpot": [(one.last - one.first) / (one.tokens - 1) for one in done if one.tokens > 1],
        "itl": [piece for one in done for piece in one.pieces],
    }
    for name, measured in times.items():
        values = sorted(1000 * value for value in measured) or [0.0]
        found |= {
            f"mean_{name}_ms": statistics.fmean(values),
            f"median_{name}_ms": statistics.median(values),
            f"p99_{name}_ms": percentile(values, 0.99),
        }
    return found


def report(found: dict[str, float]) -> str:
    """Returns the text of the report."""
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}", *(_line(text, found[name]) for name, text in TITLES.items())]
    for name, title in TIMES.items():
        lines.append(f"{title:-^{WIDTH}}")
        for kind in ("Mean", "Median", "P99"):
            lines.append(_line(f"{kind} {name.upper()} (ms)", found[f"{kind.lower()}_{name}_ms"]))
    return "\n".join([*lines, "=" * WIDTH])


def percentile(values: Sequence[float], share: float) -> float:
    """Returns a percentile of sorted values, interpolated like numpy's default."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def _line(name: str, value: float) -> str:
    return f"{f'{name}:':<40} {value:.2f}" if isinstance(value, float) else f"{f'{name}:':<40} {value}"
