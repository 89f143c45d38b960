"""The dashboard and the alerts in docs/ use only metrics and labels that the server exposes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lean_ovms.composition import compose
from lean_ovms.features.metrics.counts import PROCESS, EngineState, PrometheusMetrics
from lean_ovms.features.metrics.feature import FAMILIES
from lean_ovms.observability.records import GenerationRecord, RequestRecord
from lean_ovms.types.engine import EngineStats, ModelInfo

DOCS = Path(__file__).parents[2] / "docs"
BOARD = json.loads((DOCS / "grafana.json").read_text("utf-8"))
RULES = [
    rule for group in yaml.safe_load((DOCS / "deploy/alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
QUERIES = {f"{p['title']}, {t['refId']}": t["expr"] for p in BOARD["panels"] for t in p["targets"]}
QUERIES |= {rule["alert"]: rule["expr"] for rule in RULES}
OF_PROMETHEUS = {"up", "instance", "job"}
"""A metric and labels that Prometheus itself adds."""
NAME = re.compile(r"\b(?:vllm:|ovms_|lean_ovms_|process_)\w+|\bup\b")
SELECTION = re.compile(r"\b((?:vllm:|ovms_|lean_ovms_)\w+)\{(\w+)=")
GROUPING = re.compile(r"by \(([\w, ]+)\)")


@pytest.fixture(scope="module")
def samples() -> dict[str, set[str]]:
    """Returns the labels of each sample by its name, of a server in which events of all kinds have happened."""
    metrics = PrometheusMetrics(compose().metrics)
    generation = GenerationRecord(
        engine_id=1, prompt_tokens=1, completion_tokens=3, ttft_s=0.1, seconds=1, decode_s=0.9,
        finish_reasons=("abort",), cached_tokens=1,
    )  # fmt: skip
    record = RequestRecord("id", "POST", "/x", "", 0.0, route="/x", model="m", status=200, error="e")
    metrics.request_finished(record)
    metrics.generation_finished("m", generation, metrics.token_timer())
    stats = EngineStats(
        **dict.fromkeys(("running", "queued", "kv_blocks_used", "kv_blocks_total", "steps"), 1),
        preemptions=0,
        recoveries=0,
        of_features=dict.fromkeys((row.name for row in compose().metrics if "prefix_cache_disk" in row.name), 1.0),
    )
    info = ModelInfo(vocab_size=1, context_length=1, kv_blocks=1, versions={})
    state = EngineState(model="m", in_flight=1, up=True, restarts=0, memory=1, stats=stats, info=info)
    found: dict[str, set[str]] = {}
    of_features = [row for row in compose().metrics if row not in FAMILIES]
    counted = [(row.name, row.labels, 1.0) for row in of_features if len(row.labels) > 1 or not row.from_start]
    text = metrics.expose([state], counted).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # The parser adds the suffix to every counter, but OVMS's counters have none in the text.
            name = sample.name.removesuffix("_total") if sample.name.startswith("ovms_") else sample.name
            assert f"\n{name}" in text
            found.setdefault(name, set()).update(sample.labels)
    return found


def test_every_query_names_metrics_and_labels_that_exist(samples: dict[str, set[str]]) -> None:
    for place, query in QUERIES.items():
        names = NAME.findall(query)
        assert names, place
        for name in names:
            assert name in samples or name in OF_PROMETHEUS, place
        for name, label in SELECTION.findall(query):
            assert label in samples[name], place
        for labels in GROUPING.findall(query):
            known = set().union(*(samples[name] for name in names)) | OF_PROMETHEUS
            assert set(labels.split(", ")) <= known, place


def test_prometheus_understands_every_query() -> None:
    promql_parser = pytest.importorskip("promql_parser")
    for query in QUERIES.values():
        for variable, value in (("$__rate_interval", "5m"), ("$__interval", "1m"), ("${model:regex}", "m")):
            query = query.replace(variable, value)
        promql_parser.parse(query)


def test_alerts_name_labels_that_their_expressions_leave() -> None:
    """After a grouping, only the labels that it names are left."""
    for rule in RULES:
        named = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        if grouped := GROUPING.search(rule["expr"]):
            assert named <= set(grouped[1].split(", ")), rule["alert"]
        assert named <= {"instance", "model_name"}
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_every_family_is_exposed_by_a_server_that_has_had_all_events(samples: dict[str, set[str]]) -> None:
    for family in FAMILIES:
        name = family.name + ("_count" if family.kind == "histogram" else "")
        assert set(family.labels) <= samples[name]
    assert set(PROCESS) <= set(samples)


def test_every_panel_shows_the_chosen_source_and_models() -> None:
    def sources(value: Any) -> list[Any]:
        return [p["datasource"]["uid"] for p in value]

    assert set(sources(BOARD["panels"])) == {"${datasource}"}
    assert {v["name"] for v in BOARD["templating"]["list"]} == {"datasource", "model"}
