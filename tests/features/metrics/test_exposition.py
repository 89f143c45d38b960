"""The output is in Prometheus' text format, as its own parser confirms."""

from __future__ import annotations

import os

from prometheus_client.parser import text_string_to_metric_families

from lean_ovms.features.metrics import exposition as metrics
from lean_ovms.features.metrics.exposition import Exposition, Histogram
from lean_ovms.manifest import Metric


def read(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = list(text_string_to_metric_families(text))
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def test_labels_of_any_text_are_read_back_and_values_are_those_of_now() -> None:
    family = Metric("some_total", "counter", "all \\ of\nit", ("b", "a"))
    exposition = Exposition(family)
    odd = 'a"b\\c\nd %s %d é'
    for value in (0, 7, 0.5):
        text = exposition.text({(odd, "x"): value, ("y", ""): 1})
        assert read(text) == {
            ("some_total", frozenset({("b", odd), ("a", "x")})): value,
            ("some_total", frozenset({("b", "y"), ("a", "")})): 1,
        }
        assert text.startswith("# HELP some_total all \\\\ of\\nit\n# TYPE some_total counter\n")


def test_a_histogram_has_cumulative_buckets() -> None:
    exposition = Exposition(Metric("t", "histogram", "h", ("m",), (0.5, 2.0, 3e6)))
    histogram = Histogram((0.5, 2.0, 3e6))
    for value in (0.25, 0.5, 1, 5e6):
        histogram.observe(value)
    found = read(exposition.text({("x",): histogram}))
    buckets = {dict(labels)["le"]: value for (name, labels), value in found.items() if name == "t_bucket"}
    assert buckets == {"0.5": 2, "2": 3, "3000000": 3, "+Inf": 4}
    assert found["t_count", frozenset({("m", "x")})] == 4
    assert found["t_sum", frozenset({("m", "x")})] == 5e6 + 1.75


def test_series_that_are_gone_are_not_kept() -> None:
    exposition = Exposition(Metric("g", "gauge", "h", ("m",)))
    for number in range(50):
        assert exposition.text({(str(number),): 1}).endswith(f'g{{m="{number}"}} 1\n')
        assert len(exposition._templates) <= 2
    assert exposition.text({}) == "# HELP g h\n# TYPE g gauge\n"


def test_the_process_is_this_one() -> None:
    found = metrics.process_values()
    assert found.keys() == {family.name for family in metrics.PROCESS_FAMILIES}
    assert found["process_open_fds"] >= 3
    assert found["process_max_fds"] >= found["process_open_fds"]
    assert 1 << 20 < found["process_resident_memory_bytes"] < found["process_virtual_memory_bytes"]
    with open("/proc/uptime") as file:
        up = float(file.read().split()[0])
    assert metrics._booted_at() <= found["process_start_time_seconds"] <= metrics._booted_at() + up + 1
    times = os.times()
    assert abs(found["process_cpu_seconds_total"] - times.user - times.system) < 1
