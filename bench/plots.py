"""Pictures of what was measured; PNG files. matplotlib is imported here only, and only when plots are asked for."""

from __future__ import annotations

import pathlib

from bench.work import case_name


def _axes(rows: int, columns: int, width: float = 5.0, height: float = 3.6):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False)


def _save(figure, folder: str, name: str) -> None:
    path = pathlib.Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path / f"{name}.png", dpi=110)


def _log_ms(axis) -> None:
    """Milliseconds on a logarithmic scale, with the labels 0.1, 1, 10 only, so that they do not run into each other."""
    from matplotlib import ticker

    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.xaxis.set_minor_locator(ticker.LogLocator(subs=(2, 5)))
    axis.xaxis.set_minor_formatter(ticker.FormatStrFormatter("%g"))
    axis.tick_params(axis="x", which="minor", labelsize=7)
    axis.set_xlabel("ms")
    axis.grid(alpha=0.3, which="both")


def race(folder: str, name: str, results: dict) -> None:
    """Latency distributions of every case, and throughput against concurrency."""
    kinds = (("first", "time to first token"), ("gaps", "between tokens"), ("total", "whole request"))
    figure, axes = _axes(len(results), len(kinds))
    for row, ((streams, rate), laps) in zip(axes, results.items(), strict=True):
        for axis, (kind, title) in zip(row, kinds, strict=True):
            for who, lap in laps.items():
                values = sorted(getattr(lap.pooled(), kind))
                shares = [(i + 1) / len(values) for i in range(len(values))]
                axis.step([v * 1e3 for v in values], shares, where="post", label=who)
            axis.set_title(f"{title}, {case_name(streams, rate)}", fontsize=9)
            _log_ms(axis)
    axes[0][0].set_ylabel("share of all")
    axes[0][0].legend(fontsize=8)
    _save(figure, folder, f"{name}_latency")
    throughput(folder, name, {case[0]: laps for case, laps in results.items() if not case[1]})


def throughput(folder: str, name: str, results: dict) -> None:
    """Tokens per second against streams, and as a share of the limit."""
    if not results:
        return
    from statistics import median

    figure, axes = _axes(1, 2)
    names = list(next(iter(results.values())))
    for who in names:
        rates = [[o.tokens_per_s for o in laps[who].outcomes] for laps in results.values()]
        limit = [[o.tokens_per_s for o in laps[names[0]].outcomes] for laps in results.values()]
        shares = [[a / b for a, b in zip(x, y, strict=True)] for x, y in zip(rates, limit, strict=True)]
        for axis, series in zip(axes[0], (rates, shares), strict=True):
            middle = [median(values) for values in series]
            low = [m - min(v) for m, v in zip(middle, series, strict=True)]
            high = [max(v) - m for m, v in zip(middle, series, strict=True)]
            axis.errorbar(list(results), middle, yerr=[low, high], marker="o", capsize=3, label=who)
    for axis, title in zip(axes[0], ("tokens per second", f"share of {names[0]}"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_xticks(list(results), [str(n) for n in results])
        axis.set_xlabel("streams at once")
        axis.set_title(title, fontsize=9)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].legend(fontsize=8)
    _save(figure, folder, f"{name}_throughput")


def compare(folder: str, rows: list[dict], once: list[dict]) -> None:
    """One panel a column of the table: bars by case and contestant; the last two are of each server."""
    panels = {
        "tokens per second": lambda row: row["tokens_per_s"]["median"],
        "time to first token, ms (p50)": lambda row: row["ttft_ms"]["p50"],
        "between tokens, ms (p50)": lambda row: row["itl_ms"]["p50"],
        "CPU seconds per 1,000 tokens": lambda row: row["cpu_s_per_1000"],
    }
    names, cases = list(dict.fromkeys(row["who"] for row in rows)), list(dict.fromkeys(row["case"] for row in rows))
    figure, axes = _axes(3, 2, width=7.0, height=3.2)
    from matplotlib import ticker

    flat = [axis for line in axes for axis in line]
    for axis, (title, value) in zip(flat, panels.items(), strict=False):
        for place, who in enumerate(names):
            theirs = [row for row in rows if row["who"] == who]
            at = [cases.index(row["case"]) + (place - (len(names) - 1) / 2) * 0.85 / len(names) for row in theirs]
            axis.bar(at, [value(row) for row in theirs], 0.8 / len(names), label=who)
        axis.set_xticks(range(len(cases)), cases, fontsize=7)
        axis.set_yscale("log")
        for side in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
            side("{x:g}")
        axis.yaxis.set_minor_locator(ticker.LogLocator(subs=(2, 5)))
        axis.tick_params(axis="y", which="minor", labelsize=6)
        axis.set_title(title, fontsize=9)
        axis.grid(axis="y", alpha=0.3)
    for axis, (title, key) in zip(flat[4:], (("memory, MB", "rss_mb"), ("start, s", "start_s")), strict=True):
        for who, row in ((row["who"], row) for row in once if key in row):
            height = row[key]["median"] if isinstance(row[key], dict) else row[key]
            axis.bar(who, height, color=f"C{names.index(who)}")
            axis.text(who, height, f"{height:g}", ha="center", va="bottom", fontsize=8)
        axis.tick_params(axis="x", labelsize=7)
        axis.set_title(title, fontsize=9)
    flat[0].legend(fontsize=7)
    _save(figure, folder, "compare")


def prefix(folder: str, seen: dict) -> None:
    """Time to first token, turn by turn, in both conversations."""
    from statistics import median

    figure, axes = _axes(1, 2)
    for axis, which in zip(axes[0], (1, 2), strict=True):
        turns = [turn for conversation, turn in seen if conversation == which]
        for who in seen[which, turns[0]]:
            middle = [median(reply.first_s for reply in seen[which, turn][who]) * 1e3 for turn in turns]
            axis.plot(turns, middle, marker=".", label=who)
        axis.set_yscale("log")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.tick_params(axis="y", which="minor", labelsize=6)
        axis.set_title(f"conversation {which}: time to first token, ms", fontsize=9)
        axis.set_xlabel("turn")
        axis.grid(alpha=0.3, which="both")
    axes[0][0].legend(fontsize=8)
    _save(figure, folder, "prefix")


def timeline(folder: str, spans: dict[str, float], limit_s: float) -> None:
    """A request's way as a staircase: one bar per part of the server, from its begin to its end."""
    figure, axes = _axes(1, 1, width=9.0, height=5.0)
    axis = axes[0][0]
    colours = {"pipe to": "tab:orange", "computed": "tab:green", "tokenized": "tab:green", "client": "tab:gray"}
    start = 0.0
    for row, (name, seconds) in enumerate(spans.items()):
        colour = next((c for word, c in colours.items() if word in name), "tab:blue")
        axis.barh(row, seconds * 1e3, left=start * 1e3, color=colour)
        axis.text((start + seconds) * 1e3, row, f" {seconds * 1e6:.0f} us", va="center", fontsize=8)
        start += seconds
    axis.set_yticks(range(len(spans)), list(spans), fontsize=8)
    axis.invert_yaxis()
    axis.axvline(limit_s * 1e3, color="tab:red", linestyle="--", linewidth=1, label="the limit: bare loop")
    axis.set_xlim(right=start * 1e3 * 1.15)
    axis.set_xlabel("ms since the client sent the request (medians)")
    axis.legend(fontsize=8, loc="lower left")
    axis.grid(axis="x", alpha=0.3)
    _save(figure, folder, "timeline")


def stall(folder: str, series: dict[str, dict[str, list[float]]]) -> None:
    """Pauses of the loop and times of /health: the share of all that was worse."""
    figure, axes = _axes(1, len(series))
    for axis, (case, kinds) in zip(axes[0], series.items(), strict=True):
        for name, values in kinds.items():
            ordered = sorted(values)
            worse = [1 - i / len(ordered) for i in range(len(ordered))]
            axis.step([max(v * 1e3, 0.01) for v in ordered], worse, where="post", label=name)
        axis.set_yscale("log")
        axis.set_title(case, fontsize=9)
        _log_ms(axis)
    axes[0][0].set_ylabel("share that was worse")
    axes[0][0].legend(fontsize=8)
    _save(figure, folder, "stall")
