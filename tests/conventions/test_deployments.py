"""The files of docs/deploy use options that exist, probe paths that are served, and fit together."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lean_ovms import __version__
from lean_ovms.api import router
from lean_ovms.cli.arguments import parse
from lean_ovms.cli.keywords import of_keywords
from lean_ovms.config import Config
from lean_ovms.features.disk_cache.feature import DiskCacheOptions
from lean_ovms.features.kv_events.child.publisher import read_config
from lean_ovms.features.metrics.feature import FAMILIES
from lean_ovms.features.ray.deployment import LeanOvms

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OBJECTS = {
    document["kind"]: document
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
}
POD = OBJECTS["Deployment"]["spec"]["template"]
SERVER = POD["spec"]["containers"][0]
KSERVE = OBJECTS["ServingRuntime"]["spec"]["containers"][0]
COMMANDS = {
    "compose": COMPOSE["services"]["lean_ovms"]["command"],
    "Deployment": SERVER["args"],
    "ServingRuntime": KSERVE["args"],
}
LABELS = {"app.kubernetes.io/name": "lean-ovms"}
BLOCK_SIZE = 32
"""The number of tokens in a KV block on a CPU."""
OURS = ("Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "PersistentVolumeClaim", "Ingress")
"""Kinds that are part of Kubernetes. The schemas of all others belong to their projects."""


def environment() -> dict[str, str]:
    """Returns the variables that the Dockerfile sets."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.removeprefix("ENV ") for line in text.splitlines() if line.startswith("ENV ")]
    return dict(word.split("=", 1) for line in lines for word in shlex.split(line))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_line_is_understood(name: str) -> None:
    config = parse(COMMANDS[name], environment())
    assert config.value("metrics_enable")
    assert (config.model_path == "/mnt/models") == (name == "ServingRuntime")


@pytest.mark.parametrize("container", [SERVER, KSERVE], ids=["Deployment", "ServingRuntime"])
def test_probes_ask_paths_that_are_served_at_the_port_that_is_open(container: dict[str, Any]) -> None:
    served = {route.path for route in router.every() if route.method == "GET" and route.vital}
    port = parse(container["args"], environment()).rest_port
    [opened] = container["ports"]
    assert opened["containerPort"] == port
    for kind in ("livenessProbe", "readinessProbe"):
        probe = container[kind]["httpGet"]
        assert probe["path"] in served
        assert probe["port"] in (port, opened["name"])
    assert container["livenessProbe"]["httpGet"]["path"] != container["readinessProbe"]["httpGet"]["path"]


@pytest.mark.parametrize("container", [SERVER, KSERVE], ids=["Deployment", "ServingRuntime"])
def test_containers_are_read_only_and_have_a_place_for_temporary_files(container: dict[str, Any]) -> None:
    secure = container["securityContext"]
    assert secure["readOnlyRootFilesystem"]
    assert secure["runAsNonRoot"]
    assert not secure["allowPrivilegeEscalation"]
    assert secure["capabilities"] == {"drop": ["ALL"]}
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


def test_a_pod_has_time_to_finish_its_requests() -> None:
    config = parse(SERVER["args"], environment())
    assert POD["spec"]["terminationGracePeriodSeconds"] > config.drain_delay_s + config.drain_timeout_s
    assert config.drain_delay_s > SERVER["readinessProbe"]["periodSeconds"]
    grace = COMPOSE["services"]["lean_ovms"]["stop_grace_period"]
    assert float(grace.removesuffix("s")) > Config().drain_timeout_s


def test_everything_selects_the_pods_of_the_deployment() -> None:
    spec = {kind: found["spec"] for kind, found in OBJECTS.items()}
    assert POD["metadata"]["labels"] == LABELS
    assert spec["Deployment"]["selector"]["matchLabels"] == LABELS
    assert spec["Service"]["selector"] == LABELS
    assert spec["PodDisruptionBudget"]["selector"]["matchLabels"] == LABELS
    assert spec["PodDisruptionBudget"]["minAvailable"] < spec["Deployment"]["replicas"]
    assert OBJECTS["Service"]["metadata"]["labels"] == spec["ServiceMonitor"]["selector"]["matchLabels"]
    [port], [endpoint] = spec["Service"]["ports"], spec["ServiceMonitor"]["endpoints"]
    assert endpoint["port"] == port["name"] == port["targetPort"] == SERVER["ports"][0]["name"]
    assert spec["InferenceService"]["predictor"]["model"]["runtime"] == OBJECTS["ServingRuntime"]["metadata"]["name"]
    [model_format] = spec["ServingRuntime"]["supportedModelFormats"]
    assert spec["InferenceService"]["predictor"]["model"]["modelFormat"]["name"] == model_format["name"]


def test_images_have_the_version_of_the_package() -> None:
    version = __version__.partition(".dev")[0]
    assert SERVER["image"] == KSERVE["image"] == f"registry.example.org/lean_ovms:{version}"


def test_alerts_and_scrapes_name_the_same_job() -> None:
    [scrape] = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"]
    [relabeling] = OBJECTS["ServiceMonitor"]["spec"]["endpoints"][0]["relabelings"]
    assert scrape["job_name"] == relabeling["replacement"]
    assert f'job="{scrape["job_name"]}"' in (DEPLOY / "alerts.yaml").read_text()
    [target] = scrape["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert host in COMPOSE["services"]
    assert int(port) == parse(COMMANDS["compose"], environment()).rest_port


def mounts(service: str) -> dict[str, str]:
    """Returns the files of the repository by their path in the container."""
    volumes = [volume.split(":") for volume in COMPOSE["services"][service]["volumes"]]
    return {inside: outside for outside, inside, *_ in volumes if outside.startswith(".")}


def test_compose_mounts_files_that_exist_where_their_programs_read_them() -> None:
    every = {**mounts("prometheus"), **mounts("grafana")}
    assert every
    assert all((DEPLOY / file).is_file() for file in every.values())
    assert set(yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["rule_files"]) <= set(mounts("prometheus"))
    [provider] = yaml.safe_load((DEPLOY / "grafana_dashboards.yaml").read_text())["providers"]
    assert f"{provider['options']['path']}/lean_ovms.json" in mounts("grafana")
    [source] = yaml.safe_load((DEPLOY / "grafana_datasource.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in COMPOSE["services"]


def test_the_build_context_has_what_the_dockerfile_copies_and_nothing_secret() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    copied = [line.split()[1:-1] for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY ")]
    names = {name for words in copied for name in words if not name.startswith(("--", "/"))}
    assert {f"!{name}" for name in names} == {line for line in lines if line.startswith("!")}


@pytest.mark.parametrize("kind", OURS)
def test_kubernetes_accepts_the_objects(kind: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    validator.validate(OBJECTS[kind], validator.latest_version(), strict=True)


def test_the_autoscaler_counts_metrics_that_are_served() -> None:
    spec = OBJECTS["HorizontalPodAutoscaler"]["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "lean-ovms"}
    assert spec["minReplicas"] > OBJECTS["PodDisruptionBudget"]["spec"]["minAvailable"]
    [rule] = yaml.safe_load((DEPLOY / "prometheus_adapter.yaml").read_text())["rules"]["custom"]
    [series] = re.findall(r'__name__=~"([^"]*)"', rule["seriesQuery"])
    renamed = {
        re.sub(rule["name"]["matches"], rule["name"]["as"].replace("${1}", r"\1"), family.name)
        for family in FAMILIES
        if re.search(series, family.name)
    }
    assert {metric["pods"]["metric"]["name"] for metric in spec["metrics"]} == renamed
    assert len(renamed) == 2


def test_the_patch_mounts_the_claim_of_the_prefix_cache() -> None:
    """The patch is a strategic merge patch, which finds the objects of server.yaml by name."""
    patch = yaml.safe_load((DEPLOY / "kubernetes/patches/prefix_cache.yaml").read_text())["spec"]["template"]["spec"]
    [server], [volume] = patch["containers"], patch["volumes"]
    assert server["name"] == SERVER["name"]
    claim = OBJECTS["PersistentVolumeClaim"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    [mount] = server["volumeMounts"]
    assert mount["name"] == volume["name"]
    environ = {one["name"]: one["value"] for one in server["env"]}
    options = parse(SERVER["args"], environment() | environ).of(DiskCacheOptions)
    assert Path(options.prefix_cache_path).parent == Path(mount["mountPath"])
    assert options.prefix_cache_disk_gb * 1e9 < int(claim["spec"]["resources"]["requests"]["storage"][:-2]) << 30
    [user] = re.findall(r"^USER (\d+):\d+$", (ROOT / "Dockerfile").read_text(), re.M)
    assert patch["securityContext"]["fsGroup"] == int(user)


# --- gateways


def test_the_ingress_reaches_the_service() -> None:
    [rule] = OBJECTS["Ingress"]["spec"]["rules"]
    [path] = rule["http"]["paths"]
    backend, service = path["backend"]["service"], OBJECTS["Service"]
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"]["name"] == service["spec"]["ports"][0]["name"]
    assert OBJECTS["Ingress"]["spec"]["tls"][0]["hosts"] == [rule["host"]]
    assert service["spec"]["sessionAffinity"] == "None"


def test_the_router_by_prefixes_asks_the_servers_for_nothing_but_metrics() -> None:
    plugins = router_plugins("prefix_values.yaml")
    parameters = {plugin["type"]: plugin.get("parameters", {}) for plugin in plugins["plugins"]}
    assert parameters["approx-prefix-cache-producer"]["blockSizeTokens"] == BLOCK_SIZE
    assert parameters["prefix-cache-scorer"]["prefixMatchInfoProducerName"] in parameters
    [profile] = plugins["schedulingProfiles"]
    assert {one["pluginRef"] for one in profile["plugins"]} <= parameters.keys()


def router_plugins(file: str) -> Any:
    router = yaml.safe_load((DEPLOY / "llm_d" / file).read_text())["router"]
    assert router["modelServers"]["matchLabels"] == LABELS
    assert router["modelServers"]["targetPorts"] == OBJECTS["InferencePool"]["spec"]["targetPorts"]
    return yaml.safe_load(router["epp"]["pluginsCustomConfig"][router["epp"]["pluginsConfigFile"]])


def test_gateways_reach_the_pods() -> None:
    spec = {kind: found["spec"] for kind, found in OBJECTS.items()}
    pool, [service_port] = spec["InferencePool"], spec["Service"]["ports"]
    assert pool["selector"]["matchLabels"] == LABELS
    assert pool["targetPorts"] == [{"number": SERVER["ports"][0]["containerPort"]}]
    [[routed]] = [rule["backendRefs"] for rule in spec["HTTPRoute"]["rules"]]
    assert (routed["kind"], routed["name"]) == ("InferencePool", OBJECTS["InferencePool"]["metadata"]["name"])
    [[named]] = [rule["backendRefs"] for rule in spec["AIGatewayRoute"]["rules"]]
    assert named["name"] == OBJECTS["AIServiceBackend"]["metadata"]["name"]
    [protected] = spec["BackendSecurityPolicy"]["targetRefs"]
    assert (protected["kind"], protected["name"]) == ("AIServiceBackend", named["name"])
    assert spec["AIServiceBackend"]["backendRef"]["name"] == OBJECTS["Backend"]["metadata"]["name"]
    [endpoint] = spec["Backend"]["endpoints"]
    assert endpoint["fqdn"]["hostname"].partition(".")[0] == OBJECTS["Service"]["metadata"]["name"]
    assert endpoint["fqdn"]["port"] == service_port["port"]


def test_llm_d_reads_what_the_patched_servers_publish() -> None:
    patch = yaml.safe_load((DEPLOY / "llm_d" / "server_patch.yaml").read_text())
    plugins = router_plugins("router_values.yaml")
    [server] = patch["spec"]["template"]["spec"]["containers"]
    assert server["name"] == SERVER["name"]
    environ = {one["name"]: one["value"] for one in server["env"] if "value" in one}
    config = parse(SERVER["args"], environment() | environ)
    events = read_config(config.value("kv_events_config"))
    assert events.enable_kv_cache_events
    parameters = {plugin["type"]: plugin.get("parameters", {}) for plugin in plugins["plugins"]}
    assert parameters["token-producer"]["modelName"] == config.model_name
    assert parameters["token-producer"]["vllm"]["url"] == f"http://{OBJECTS['Service']['metadata']['name']}"
    cache = parameters["precise-prefix-cache-producer"]
    assert cache["tokenProcessorConfig"]["blockSizeTokens"] == BLOCK_SIZE
    assert events.topic.startswith(cache["kvEventsConfig"]["topicFilter"])
    discovered = cache["kvEventsConfig"]["podDiscoveryConfig"]
    ports = [discovered["socketPort"], discovered["replaySocketPort"]]
    assert [one["containerPort"] for one in server["ports"]] == ports
    assert [events.endpoint, events.replay_endpoint] == [f"tcp://*:{port}" for port in ports]
    [profile] = plugins["schedulingProfiles"]
    assert {one["pluginRef"] for one in profile["plugins"]} <= parameters.keys()


def test_rays_file_has_options_that_exist_and_a_deployment_of_that_name() -> None:
    [application] = yaml.safe_load((DEPLOY / "ray.yaml").read_text())["applications"]
    module, _, builder = application["import_path"].partition(":")
    assert callable(getattr(importlib.import_module(module), builder))
    config = of_keywords(**application["args"])
    [deployment] = application["deployments"]
    assert deployment["name"] == LeanOvms.__name__
    assert json.loads(config.plugin_config)["INFERENCE_NUM_THREADS"] == deployment["ray_actor_options"]["num_cpus"]


LITELLM_ROUTER = """
import json, sys
from litellm import Router
config = json.loads(sys.argv[1])
print(set(Router(model_list=config["model_list"], **config["router_settings"]).get_model_names()))
"""


@pytest.mark.slow
def test_litellm_keeps_sessions_on_servers_of_one_model() -> None:
    config = yaml.safe_load((DEPLOY / "litellm.yaml").read_text())
    assert {one["model_name"] for one in config["model_list"]} == {"qwen3"}
    assert len({one["litellm_params"]["api_base"] for one in config["model_list"]}) == len(config["model_list"])
    if importlib.util.find_spec("litellm") is None:
        pytest.skip("needs the extra deploy")
    # In a process of its own: importing it warns, and asks the network for prices unless it is told not to.
    command = [sys.executable, "-W", "ignore", "-c", LITELLM_ROUTER, json.dumps(config)]
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert found.stdout.strip().endswith("{'qwen3'}"), found.stderr
