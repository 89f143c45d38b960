"""Pulling from a hub on localhost: complete, verified, resumed, or nothing at all."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.errors import StartError
from lean_ovms.features.deployment.listing import servable
from lean_ovms.features.hub import staging
from lean_ovms.features.hub.client import HubClient, PullError, RetryPolicy, open_hub
from lean_ovms.features.hub.pull import file_name, prepare, pull
from lean_ovms.features.hub.runtime import HubPulls, NotChanged
from lean_ovms.features.hub.source import reads_images
from lean_ovms.repository.model_file import quantized
from tests.features.hub.conftest import WEIGHTS, Hub, model_files
from tests.features.hub.hub_server import Fault, Repo

PULLED = {k: v for k, v in model_files().items() if k not in (".gitattributes", "model.safetensors")}


@pytest.mark.slow
def test_a_model_is_pulled_without_what_nobody_reads(hub: Hub) -> None:
    assert hub.pull() is True
    assert hub.tree() == PULLED
    assert hub.clean


@pytest.mark.slow
def test_a_model_that_is_there_is_not_asked_for(hub: Hub) -> None:
    hub.pull()
    (hub.order().target / "config.json").write_text("mine")
    hub.server.seen.clear()
    assert hub.pull() is False
    assert hub.server.seen == []
    assert (hub.order().target / "config.json").read_text() == "mine"


@pytest.mark.slow
def test_overwriting_replaces_the_whole_directory(hub: Hub) -> None:
    hub.pull()
    (hub.order().target / "stray").write_text("x")
    hub.repos["org/model"].files["config.json"] = b'{"new": 1}'
    assert hub.pull(overwrite=True) is True
    assert hub.tree() == {**PULLED, "config.json": b'{"new": 1}'}
    assert hub.clean


def test_a_download_that_breaks_off_goes_on_where_it_stopped(hub: Hub) -> None:
    hub.repos["org/model"].faults["openvino_model.bin"] = [Fault(cut=100_000), Fault(cut=50_000)]
    hub.pull()
    assert hub.server.starts("openvino_model.bin") == [0, 100_000, 150_000]
    assert hub.tree() == PULLED


@pytest.mark.slow
def test_a_later_pull_goes_on_where_the_first_gave_up(hub: Hub, waits: list[float]) -> None:
    hub.repos["org/model"].faults["openvino_model.bin"] = [Fault(cut=100_000)] + [Fault(status=500)] * 5
    caught = hub.refuses("answered 500 for org/model; run the same command again to continue")
    assert caught.temporary
    assert not hub.order().target.exists()
    hub.repos["org/model"].faults.clear()
    hub.server.seen.clear()
    hub.pull()
    assert hub.server.starts("openvino_model.bin") == [100_000]
    assert hub.tree() == PULLED


@pytest.mark.slow
def test_what_came_of_another_commit_is_not_used(hub: Hub) -> None:
    hub.repos["org/model"].faults["openvino_model.bin"] = [Fault(cut=100_000)] + [Fault(status=500)] * 9
    with pytest.raises(PullError):
        hub.pull()
    new = bytes(reversed(WEIGHTS))
    hub.repos["org/model"] = Repo(model_files(new))
    hub.server.seen.clear()
    hub.pull()
    assert hub.server.starts("openvino_model.bin") == [0]
    assert (hub.order().target / "openvino_model.bin").read_bytes() == new


@pytest.mark.slow
def test_content_that_is_too_short_is_completed(hub: Hub) -> None:
    hub.repos["org/model"].faults["openvino_model.bin"] = [Fault(short=1000)]
    hub.pull()
    assert hub.tree() == PULLED


@pytest.mark.slow
def test_spoiled_content_is_fetched_once_more(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    hub.repos["org/model"].faults["openvino_model.bin"] = [Fault(spoil=True)]
    hub.repos["org/model"].faults["config.json"] = [Fault(spoil=True)]
    hub.pull()
    assert caplog.text.count("does not match its hash") == 2
    assert hub.tree() == PULLED


def test_content_with_the_wrong_hash_never_looks_like_a_model(hub: Hub) -> None:
    hub.repos["org/model"].lie["openvino_model.bin"] = hashlib.sha256(b"other").hexdigest()
    hub.refuses(r"openvino_model\.bin of org/model was received twice with a hash other than")
    assert not hub.order().target.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "status"), [("", 408), ("", 429), ("openvino_model.bin", 500), ("openvino_model.bin", 503)]
)
def test_a_hub_that_is_busy_is_asked_again(hub: Hub, where: str, status: int) -> None:
    hub.repos["org/model"].faults[where] = [Fault(status=status), Fault(status=status)]
    hub.pull()
    assert hub.tree() == PULLED


@pytest.mark.slow
def test_retry_after_is_heeded_within_reason(hub: Hub, waits: list[float]) -> None:
    hub.repos["org/model"].faults[""] = [
        Fault(status=429, headers={"Retry-After": "7"}),
        Fault(status=503, headers={"Retry-After": "99999"}),
        Fault(status=503),
    ]
    hub.pull()
    assert waits == [7.0, 60.0, 2.0]


@pytest.mark.slow
def test_a_server_that_stalls_is_left_and_asked_again(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.15)
    hub.repos["org/model"].faults["openvino_model.bin"] = [Fault(stall_s=0.6)]
    hub.pull()
    assert hub.server.starts("openvino_model.bin") == [0, 0]
    assert hub.tree() == PULLED


def test_without_a_network_one_line_says_so(hub: Hub, waits: list[float]) -> None:
    client = HubClient("http://127.0.0.1:9", RetryPolicy(attempts=2, sleep=waits.append))
    with pytest.raises(PullError, match=r"^http://127\.0\.0\.1:9 did not answer for org/model \(Connect") as caught:
        pull(hub.order(), lambda: client)
    assert caught.value.temporary
    assert len(waits) == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "hf_wrong"])
def test_a_gated_model_says_what_to_do(hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    hub.repos["org/model"].gated = True
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    hub.refuses(f"gated: accept its terms at {hub.server.url}/org/model, and set HF_TOKEN")


@pytest.mark.parametrize("kind", ["gated", "private"])
def test_a_token_opens_it_and_never_reaches_the_storage(hub: Hub, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    setattr(hub.repos["org/model"], kind, True)
    monkeypatch.setenv("HF_TOKEN", hub.server.token)
    hub.pull()
    assert hub.tree() == PULLED
    assert {seen.token for seen in hub.server.seen if seen.path.startswith("/api/")} == {hub.server.token}
    assert {seen.token for seen in hub.server.seen if seen.path.startswith("/storage/")} == {""}


@pytest.mark.slow
def test_a_proxy_is_used(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", hub.server.url)
    monkeypatch.setenv("no_proxy", "localhost")
    pull(hub.order(), lambda: HubClient("http://hub.invalid/"))
    assert hub.tree() == PULLED
    assert {seen.host for seen in hub.server.seen if not seen.path.startswith("/storage")} == {"hub.invalid"}


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
def test_a_proxy_that_does_not_answer_is_named(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, waits: list[float], variable: str
) -> None:
    monkeypatch.setenv(variable, "http://user:password@127.0.0.1:9")
    client = HubClient("http://hub.invalid", RetryPolicy(attempts=0))
    said = rf"did not answer for org/model through the proxy of {variable}, 127\.0\.0\.1:9 \(Connect"
    with pytest.raises(PullError, match=said) as caught:
        pull(hub.order(), lambda: client)
    assert "password" not in str(caught.value)


@pytest.mark.parametrize("proxy", ["socks4://127.0.0.1:9", "http://127.0.0.1:x", "ftp://127.0.0.1:9"])
def test_a_proxy_that_cannot_be_used_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    said = "^http://hub.invalid cannot be reached through the proxy of http_proxy, "
    with pytest.raises(PullError, match=said) as caught:
        pull(hub.order(), lambda: HubClient("http://hub.invalid"))
    assert not caught.value.temporary


def test_an_endpoint_without_a_scheme_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "hub.invalid")
    with pytest.raises(StartError, match=r"^HF_ENDPOINT must begin with http:// or https://, not be 'hub\.invalid'$"):
        open_hub()


def test_offline_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants
    from huggingface_hub import close_session

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    close_session()
    hub.refuses("HF_HUB_OFFLINE")


@pytest.mark.parametrize("name", ["", "..", "../x", "a/../b", "a/b/c", "/etc", "org/", "org/na me", "org/x..y"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    from lean_ovms.features.hub.pull import check_name

    with pytest.raises(PullError, match="not a model name"):
        check_name(name)


@pytest.mark.parametrize("path", ["../evil.json", "/etc/evil.json", "a/../../evil.json", "a\\b.json", "a//b.json"])
def test_files_that_lead_elsewhere_are_refused(hub: Hub, path: str) -> None:
    hub.repos["org/model"].files[path] = b"{}"
    hub.refuses("unsafe name")


def test_a_full_disk_is_noticed_before(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 17_000_000})
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda path: usage)
    hub.refuses(r"org/model needs 514 kB, but only 17\.0 MB are free in")
    assert hub.server.starts("openvino_model.bin") == []


def test_a_directory_that_is_no_model_is_not_taken_for_one(hub: Hub) -> None:
    hub.order().target.mkdir(parents=True)
    (hub.order().target / "notes.txt").write_text("x")
    hub.refuses(r"not a complete OpenVINO model.*--overwrite_models")


def test_a_repository_that_cannot_be_written_is_named(hub: Hub) -> None:
    hub.order().repository.write_text("a file")
    hub.refuses(r"models.*: Not a directory")


def test_a_repository_that_cannot_be_read_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = os.stat

    def forbidden(path: Path, **given: bool) -> os.stat_result:
        if path == hub.order().target:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **given)

    monkeypatch.setattr(os, "stat", forbidden)
    with pytest.raises(PullError, match=r"models/org/model: Permission denied$"):
        file_name("org/model", hub.order().target, "", lambda: HubClient("http://127.0.0.1:9"))


# --- GGUF


def test_a_gguf_file_is_pulled_alone(hub: Hub) -> None:
    hub.repos["org/quants"] = Repo({"a-Q4_K_M.gguf": b"4" * 5000, "a-Q8_0.gguf": b"8" * 9000, "README.md": b"x"})
    hub.pull("org/quants", file="a-Q4_K_M.gguf")
    hub.pull("org/quants", file="a-Q8_0.gguf")
    assert hub.tree("org/quants") == {"a-Q4_K_M.gguf": b"4" * 5000, "a-Q8_0.gguf": b"8" * 9000}
    assert hub.clean


def test_the_file_that_reads_images_comes_with_a_gguf_file(hub: Hub) -> None:
    there = ["a-Q8_0.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "Q4/a-Q4_K_M.gguf", "Q4/mmproj-F32.gguf"]
    hub.repos["org/eyes"] = Repo({name: name.encode() for name in there})
    hub.pull("org/eyes", file="a-Q8_0.gguf")
    assert set(hub.tree("org/eyes")) == {"a-Q8_0.gguf"}
    hub.pull("org/eyes", file="a-Q8_0.gguf", images=True, overwrite=True)
    assert set(hub.tree("org/eyes")) == {"a-Q8_0.gguf", "mmproj-F16.gguf"}
    hub.pull("org/eyes", file="Q4/a-Q4_K_M.gguf", images=True)
    assert set(hub.tree("org/eyes")) == {"a-Q8_0.gguf", "mmproj-F16.gguf", "Q4/a-Q4_K_M.gguf", "Q4/mmproj-F32.gguf"}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [({}, True), ({"mmproj": "none"}, False), ({"mmproj": "x.gguf"}, False), ({"without": "vision"}, False)],
)
def test_it_comes_unless_an_option_says_otherwise(options: dict[str, str], wanted: bool) -> None:
    assert reads_images(Config(source_model="org/eyes", **options)) is wanted


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("q4_k_m", "a-Q4_K_M.gguf"), ("Q4_K", ""), ("UD-Q4_K_XL", "a-UD-Q4_K_XL.gguf"),
        ("Q8_0", "Q8_0/a-00001-of-00002.gguf"), ("F16", "a.F16.gguf"), ("Q5", ""),
    ],
)  # fmt: skip
def test_a_quantization_names_a_file(wanted: str, name: str) -> None:
    names = ["a-Q4_K_M.gguf", "a-UD-Q4_K_M.gguf", "a-UD-Q4_K_XL.gguf", "mmproj-F16.gguf", "a.F16.gguf"]
    names += ["Q8_0/a-00001-of-00002.gguf", "Q8_0/a-00002-of-00002.gguf", "b-IQ5.gguf"]
    assert quantized(names, wanted) == name


def test_a_quantization_is_looked_for_in_the_directory_and_at_the_hub(hub: Hub) -> None:
    hub.repos["org/quants"] = Repo({"a-Q4_K_M.gguf": b"4" * 5000, "a-Q8_0.gguf": b"8" * 9000})
    target = hub.order("org/quants").target
    name = file_name("org/quants", target, "Q8_0", hub.open)
    assert name == "a-Q8_0.gguf"
    hub.pull("org/quants", file=name)
    hub.server.stop()
    assert file_name("org/quants", target, "q8_0", hub.open) == name


def test_an_unknown_quantization_lists_the_files(hub: Hub) -> None:
    hub.repos["org/quants"] = Repo({"a-Q8_0.gguf": b"8"})
    with pytest.raises(PullError, match=r"org/quants has no Q4_K_M; it has a-Q8_0\.gguf$"):
        file_name("org/quants", hub.order("org/quants").target, "Q4_K_M", hub.open)


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (["a-IQ1_S.gguf", "a-Q4_K_M.gguf", "mmproj-a.gguf"], "a-Q4_K_M.gguf"),
        (["Q8_0/a-00001-of-00002.gguf", "Q8_0/a-00002-of-00002.gguf", "mmproj.gguf"], "Q8_0/a-00001-of-00002.gguf"),
        (["a-Q4_K_M.gguf", *model_files()], ""),
        (["openvino_model.xml"], ""),
        (["model.safetensors"], ""),
    ],
)
def test_without_a_quantization_it_is_the_one_that_llama_cpp_takes(hub: Hub, files: list[str], name: str) -> None:
    hub.repos["org/quants"] = Repo(dict.fromkeys(files, b"x"))
    target = hub.order("org/quants").target
    assert file_name("org/quants", target, "", hub.open) == name
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        (target / file).touch()
    hub.server.stop()
    assert file_name("org/quants", target, "", hub.open) == name


def test_the_first_part_of_a_split_gguf_file_brings_the_others(hub: Hub) -> None:
    parts = {f"Q4/a-0000{i}-of-00003.gguf": bytes([i]) * 3000 for i in (1, 2, 3)}
    hub.repos["org/quants"] = Repo({**parts, "b.gguf": b"b"})
    hub.pull("org/quants", file="Q4/a-00001-of-00003.gguf")
    assert hub.tree("org/quants") == parts


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("c.gguf", r"org/quants has no c\.gguf; it has a-00001-of-00002\.gguf, b\.gguf$"),
        ("a-00002-of-00002.gguf", "name the first part"),
        ("d-00001-of-00002.gguf", r"has no d-00001-of-00002\.gguf"),
        ("a-00001-of-00002.gguf", r"but not its other parts a-00002-of-00002\.gguf"),
    ],
)
def test_a_wrong_file_name_lists_the_right_ones(hub: Hub, name: str, message: str) -> None:
    hub.repos["org/quants"] = Repo({"a-00001-of-00002.gguf": b"a", "b.gguf": b"b"})
    hub.refuses(message, "org/quants", file=name)


# --- what is no OpenVINO model


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"model.safetensors": b"x", "config.json": b"{}"}, r"but a PyTorch checkpoint.*optimum-cli export openvino"),
        ({"kokoro-v1_0.pth": b"x", "config.json": b"{}"}, r"but a PyTorch checkpoint.*optimum-cli export openvino"),
        ({"x.gguf": b"x"}, r"give --gguf_filename; it has x\.gguf"),
        ({"int4/openvino_model.xml": b"x"}, "at its top level, but one in int4"),
        ({"notes.txt": b"x"}, r"it contains notes\.txt"),
        ({}, "is empty"),
        ({**model_files(), "openvino_model.bin": None}, r"not a complete OpenVINO model: openvino_model\.bin missing"),
        ({**model_files(), "openvino_tokenizer.xml": None}, r"openvino_tokenizer\.xml missing; convert_tokenizer"),
        ({f"openvino_vocoder.{end}": b"x" for end in ("xml", "bin")}, r"openvino_encoder_model\.xml, .*missing"),
    ],
)
def test_what_is_no_openvino_model_says_what_to_do(
    hub: Hub, files: dict[str, bytes | None], message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("lean_ovms.features.hub.convert.find_program", lambda name: None)
    hub.repos["org/other"] = Repo({k: v for k, v in files.items() if v is not None})
    hub.refuses(message, "org/other")
    assert not hub.order("org/other").target.exists()


@pytest.mark.parametrize(
    "files",
    [
        [f"openvino_{name}.{end}" for end in ("xml", "bin") for name in
         ("encoder_model", "decoder_model", "postnet", "vocoder", "tokenizer")],
        ["openvino_model.xml", "openvino_model.bin", "config.json", "voices/a.bin", "data/us_gold.json"],
    ],
    ids=["SpeechT5", "Kokoro"],
)  # fmt: skip
def test_a_model_that_speaks_is_pulled(hub: Hub, files: list[str]) -> None:
    hub.repos["org/voice"] = Repo({**dict.fromkeys(files, b"x"), "model.safetensors": b"x"})
    request = hub.order("org/voice")
    pull(request, hub.open)
    assert sorted(str(path.relative_to(request.target)) for path in request.target.rglob("*.*")) == sorted(files)


FAKE_OPTIMUM = """#!/bin/sh
echo "$@" >> {log}
for last; do :; done
[ -n "{fails}" ] && exit 3
mkdir -p "$last"
for name in openvino_model openvino_tokenizer openvino_detokenizer; do echo x > "$last/$name.xml"; done
"""


@pytest.fixture
def optimum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Installs an optimum-cli that records its arguments and creates empty files."""

    def install(fails: str = "") -> Path:
        program, log = tmp_path / "optimum-cli", tmp_path / "asked"
        program.write_text(FAKE_OPTIMUM.format(log=log, fails=fails))
        program.chmod(0o755)
        monkeypatch.setattr("lean_ovms.features.hub.convert.find_program", {"optimum-cli": str(program)}.get)
        return log

    return install


def test_a_checkpoint_is_converted_when_optimum_is_installed(hub: Hub, optimum: Callable[..., Path]) -> None:
    log = optimum()
    hub.repos["org/torch"] = Repo({"model.safetensors": b"x"})
    hub.pull("org/torch", weight_format="int4", extra="--sym --group-size -1")
    assert (hub.order("org/torch").target / "openvino_model.xml").exists()
    assert hub.clean
    asked = log.read_text().split()
    assert asked[:6] == ["export", "openvino", "--model", "org/torch", "--weight-format", "int4"]
    assert asked[6:9] == ["--sym", "--group-size", "-1"]
    assert "--trust-remote-code" not in asked


def test_a_revision_is_not_converted(hub: Hub, optimum: Callable[..., Path]) -> None:
    optimum()
    hub.repos["org/torch@v1"] = Repo({"config.json": b"{}", "model.safetensors": b"w"})
    hub.refuses(
        "org/torch has no OpenVINO model at --revision v1, and only the main revision", "org/torch", revision="v1"
    )


def test_the_weights_of_dense_modules_are_pulled_with_a_network(hub: Hub) -> None:
    hub.repos["org/embedder"] = Repo({**model_files(), "2_Dense/model.safetensors": b"x"})
    hub.pull("org/embedder")
    target = hub.order("org/embedder").target
    assert (target / "2_Dense/model.safetensors").is_file()
    assert not (target / "model.safetensors").exists()


def test_a_converted_embedder_keeps_the_files_that_say_how_it_pools(hub: Hub, optimum: Callable[..., Path]) -> None:
    log = optimum()
    files = {
        "modules.json": b"[]",
        "1_Pooling/config.json": b"{}",
        "2_Dense/model.safetensors": b"x",
        "config_sentence_transformers.json": b"{} ",
    }
    hub.repos["org/torch"] = Repo({"model.safetensors": b"x", "onnx/config.json": b"1", **files})
    hub.pull("org/torch", task="embeddings")
    target = hub.order("org/torch").target
    assert {name: (target / name).read_bytes() for name in files} == files
    assert not (target / "onnx").exists()
    assert "--task feature-extraction" in log.read_text()


@pytest.mark.parametrize(
    ("files", "tokenizers"),
    [(("openvino_model.xml", "config.json"), True), (("openvino_model.xml", "config.json", "voices/a.bin"), False)],
    ids=["a language model", "Kokoro"],
)
def test_tokenizers_are_made_of_models_that_have_any(
    files: tuple[str, ...], tokenizers: bool, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, arguments: list[str]) -> None:
        asked.append(name)
        made = files if name == "optimum-cli" else ("openvino_tokenizer.xml", "openvino_detokenizer.xml")
        for file in made:
            path = Path(arguments[-1]) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}", "utf-8")

    asked: list[str] = []
    monkeypatch.setattr("lean_ovms.features.hub.convert.find_program", str)
    monkeypatch.setattr("lean_ovms.features.hub.convert._run", run)
    hub.repos["org/torch"] = Repo({"kokoro-v1_0.pth": b"x", "config.json": b"{}"})
    hub.pull("org/torch")
    assert asked == ["optimum-cli", *["convert_tokenizer"] * tokenizers]


def test_a_conversion_that_fails_leaves_no_model(hub: Hub, optimum: Callable[..., Path]) -> None:
    optimum(fails="yes")
    hub.repos["org/torch"] = Repo({"model.safetensors": b"x"})
    hub.refuses(r"could not convert the model \(exit status 3\)", "org/torch")
    assert not hub.order("org/torch").target.exists()


def test_a_conversion_that_makes_no_model_is_none(hub: Hub, optimum: Callable[..., Path], tmp_path: Path) -> None:
    optimum()
    (tmp_path / "optimum-cli").write_text('#!/bin/sh\nfor last; do :; done\nmkdir -p "$last"; echo > "$last/x.txt"\n')
    hub.repos["org/torch"] = Repo({"model.safetensors": b"x"})
    hub.refuses(r"did not produce a complete model: .*openvino_model\.xml", "org/torch")
    assert not hub.order("org/torch").target.exists()
    assert hub.tree("") == {}


# --- directories that are no OpenVINO model yet


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "here" / "Model-1B"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"x")
    (path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    return path


def test_a_checkpoint_in_a_directory_is_converted_once(optimum: Callable[..., Path], checkpoint: Path) -> None:
    log = optimum()
    target = prepare(checkpoint, "", "int4", "--sym")
    assert target == checkpoint.with_name("Model-1B-ov")
    assert log.read_text() == (
        f"export openvino --model {checkpoint} --weight-format int4 --sym {checkpoint.parent}/.pull/Model-1B-ov/ready\n"
    )
    assert prepare(checkpoint, "", "", "") == target
    assert log.read_text().count("\n") == 1
    assert sorted(path.name for path in checkpoint.parent.iterdir()) == ["Model-1B", "Model-1B-ov"]
    assert prepare(target, "", "", "") == target


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin", "kokoro-v1_0.pth"])
def test_without_optimum_the_lines_that_convert_are_said(
    weights: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / weights)
    monkeypatch.setattr("lean_ovms.features.hub.convert.find_program", lambda _: None)
    with pytest.raises(PullError) as error:
        prepare(checkpoint, "", "", "")
    assert str(error.value).splitlines()[1:] == [
        '  pip install "optimum-intel[openvino]"',
        f"  optimum-cli export openvino --model {checkpoint} --weight-format int8 {checkpoint}-ov",
    ]


def test_what_is_no_checkpoint_stays(tmp_path: Path) -> None:
    assert prepare(tmp_path, "", "", "") == tmp_path


@pytest.mark.slow
def test_missing_tokenizers_are_made_from_tokenizer_json(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = tmp_path / "model"
    shutil.copytree(DEMO_MODEL, model, ignore=shutil.ignore_patterns("*tokenizer.xml", "*tokenizer.bin"))
    before = {path.name for path in model.iterdir()}
    assert prepare(model, "", "", "") == model
    kinds = ("openvino_tokenizer", "openvino_detokenizer")
    assert {path.name for path in model.iterdir()} - before == {
        f"{kind}.{end}" for kind in kinds for end in ("xml", "bin")
    }


# --- processes


PULL = """
import sys, pathlib
from lean_ovms.observability import logging
from lean_ovms.features.hub.client import HubClient
from lean_ovms.features.hub.pull import PullRequest, pull
logging.setup("INFO")
repository = pathlib.Path(sys.argv[2])
order = PullRequest(source="org/model", repository=repository, target=repository / "org/model")
print(pull(order, lambda: HubClient(sys.argv[1])))
"""


def start(hub: Hub) -> subprocess.Popen[str]:
    environ = {**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": ""}
    command = [sys.executable, "-c", PULL, hub.server.url, str(hub.folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


@pytest.mark.slow
def test_two_processes_do_not_pull_the_same_model_twice(hub: Hub) -> None:
    hub.repos["org/model"].faults["openvino_model.bin"] = [Fault(stall_s=1.0)]
    both = [start(hub) for _ in range(2)]
    said = [process.communicate(timeout=300) for process in both]
    assert sorted(out.strip() for out, _ in said) == ["False", "True"]
    assert hub.server.starts("openvino_model.bin") == [0]
    assert hub.tree() == PULLED
    assert hub.clean


@pytest.mark.slow
def test_a_killed_pull_is_gone_on_with_by_the_next(hub: Hub) -> None:
    weights = WEIGHTS * 40
    hub.repos["org/model"].files["openvino_model.bin"] = weights
    gate = threading.Event()
    hub.repos["org/model"].faults["openvino_model.bin"] = [Fault(cut=15_000_000), Fault(stall_s=300)]
    process = start(hub)
    parts = hub.order().repository / staging.HIDDEN / "org--model" / "parts"
    deadline = time.monotonic() + 300
    while not (parts.is_dir() and any(p.stat().st_size > 9_000_000 for p in parts.iterdir())):
        assert time.monotonic() < deadline
        assert process.poll() is None
        gate.wait(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    assert not hub.order().target.exists()
    hub.repos["org/model"].faults.clear()
    hub.server.seen.clear()
    hub.pull()
    assert hub.server.starts("openvino_model.bin")[0] >= 9_000_000
    assert (hub.order().target / "openvino_model.bin").read_bytes() == weights


@pytest.mark.slow
def test_progress_is_logged(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lean_ovms.hub"):
        hub.pull()
    assert "9 files with 514 kB" in caplog.text
    assert "openvino_model.bin (512 kB)" in caplog.text


@pytest.mark.parametrize("name", ["y-00001-of-00002.gguf", "org/z"])
def test_a_client_deletes_a_model_with_all_its_files(tmp_path: Path, name: str) -> None:
    for file in ("x.gguf", "y-00001-of-00002.gguf", "y-00002-of-00002.gguf", "org/z/z.gguf"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    left: list[str] = []

    async def unserve() -> None:
        left.extend(servable(tmp_path))

    pulls = HubPulls(Config(model_repository_path=str(tmp_path), allow_runtime_pull=True))
    before = servable(tmp_path)
    asyncio.run(pulls.delete(name, unserve))
    assert left == servable(tmp_path) == [one for one in before if one != name]
    assert not (tmp_path / ".removed").exists()
    assert not (tmp_path / "org").exists() or name != "org/z"
    with pytest.raises(NotChanged, match="not in the model repository"):
        asyncio.run(pulls.delete("../x.gguf", unserve))
