"""Weights files: precision, size, and one that is too short."""

from __future__ import annotations

import re
import resource
import shutil
from pathlib import Path

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.loading.pipeline_choice import as_start_error, check_files
from lean_ovms.errors import StartError
from lean_ovms.repository import model_config
from lean_ovms.util.resources import with_thread_limits

DEMO = Path(model_config.__file__).parents[1] / "demo_model"


def network(folder: Path, constants: list[tuple[str, int, int]], size: int, name: str = "openvino_model") -> None:
    data = [f'<data element_type="{kind}" shape="1" offset="{place}" size="{n}" />' for kind, place, n in constants]
    (folder / f"{name}.xml").write_text("<net>" + "".join(data) + "</net>")
    (folder / f"{name}.bin").write_bytes(b"x" * size)


def test_the_precision_is_that_of_most_bytes_counted_once(tmp_path: Path) -> None:
    network(tmp_path, [("u4", 0, 60), ("f16", 60, 50), ("f16", 60, 50), ("i64", 110, 8)], 118)
    assert model_config.precision(tmp_path) == "u4"
    assert model_config.precision(tmp_path / "nothing") == ""
    assert model_config.short_file(tmp_path) == ""


def test_a_file_that_broke_off_is_named_with_both_sizes(tmp_path: Path) -> None:
    network(tmp_path, [("u4", 0, 60)], 60)
    network(tmp_path, [("f32", 0, 100)], 40, "openvino_tokenizer")
    text = model_config.short_file(tmp_path)
    assert text.startswith(
        f"{tmp_path / 'openvino_tokenizer.bin'} is truncated, with 40 of 100 bytes: copy, pull or export"
    )
    (tmp_path / "openvino_tokenizer.bin").unlink()
    assert "with 0 of 100 bytes" in model_config.short_file(tmp_path)


def test_a_pointer_of_git_lfs_is_recognized(tmp_path: Path) -> None:
    network(tmp_path, [("u4", 0, 60_000_000)], 0)
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 60000000\n"
    (tmp_path / "openvino_model.bin").write_text(text)
    assert model_config.short_file(tmp_path).endswith("is truncated, with 133 of 60000000 bytes: run git lfs pull")


def test_a_network_without_its_end_is_named(tmp_path: Path) -> None:
    network(tmp_path, [("u4", 0, 60)], 60)
    network(tmp_path, [("u4", 0, 60)], 10, "other")
    (tmp_path / "openvino_tokenizer.xml").write_text('<net name="a"><layers>' + " " * 3000)
    cut = f"{tmp_path / 'openvino_tokenizer.xml'} is truncated: copy, pull or export the model again"
    assert model_config.short_file(tmp_path, needed_only=True) == cut
    (tmp_path / "openvino_tokenizer.xml").unlink()
    assert model_config.short_file(tmp_path, needed_only=True) == ""
    assert "other.bin is truncated, with 10 of 60 bytes" in model_config.short_file(tmp_path)


def test_what_is_needed_and_free_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    network(tmp_path, [], 2_000_000)
    for name in ("openvino_tokenizer", "openvino_detokenizer"):
        network(tmp_path, [], 0, name)
    config = Config(model_path=str(tmp_path))
    check_files(config)
    assert caplog.text == ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lean_ovms.engine.loading.pipeline_choice.free_memory_bytes", lambda: 1_000_000)
        check_files(config)
        said = r"bad_alloc; its weights take 0\.0 GB, and 0\.0 GB of memory are free"
        with pytest.raises(StartError, match=said), as_start_error(config):
            raise RuntimeError("std::bad_alloc")
        caplog.clear()
        large = Config(model_path=str(tmp_path), cache_size=900)
        check_files(large)
        assert "memory are free, and --cache_size asks for another 900 GB" in caplog.text
        with pytest.raises(StartError, match=r"free, and --cache_size asks for another 900 GB"), as_start_error(large):
            raise RuntimeError("std::bad_alloc")
    assert "the model may not fit into memory: its weights take" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("std::bad_alloc"), MemoryError("std::bad_alloc")])
def test_a_limit_of_address_space_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Free memory does not explain why an allocation failed under `ulimit -v`."""
    network(tmp_path, [], 0)
    config = Config(model_path=str(tmp_path))
    for limit, said in ((3_000_000_000, "3.0 GB of address space (ulimit -v, LimitAS)"), (-1, "memory are free")):
        monkeypatch.setattr("resource.getrlimit", lambda _, limit=limit: (limit, limit))
        with pytest.raises(StartError, match=re.escape(said)) as found, as_start_error(config):
            raise error
    assert str(found.value).endswith("memory are free")


def test_a_library_that_memory_lacks_for_is_no_missing_device(tmp_path: Path) -> None:
    text = 'Cannot load library "libopenvino_intel_cpu_plugin.so": failed to map segment from shared object'
    with pytest.raises(StartError, match="memory are free"), as_start_error(Config(model_path=str(tmp_path))):
        raise RuntimeError(text)


def test_the_limits_of_threads_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda kind: (77, 77) if kind == resource.RLIMIT_NPROC else (-1, -1))
    group = tmp_path / "sys/fs/cgroup/system.slice/l.service"
    group.mkdir(parents=True)
    (group / "pids.max").write_text("512\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("8:pids:/x\n0::/system.slice/l.service\n")
    text = "Resource temporarily unavailable"
    assert with_thread_limits(text, tmp_path) == (
        f"{text}: no thread could be started; a process may have 77 processes and threads of its user (ulimit -u, "
        "LimitNPROC), 512 of its control group (TasksMax, --pids-limit)"
    )
    said = f"{text}: no thread could be started; a process may have 77 processes"
    with pytest.raises(StartError, match=said), as_start_error(Config(model_path=str(tmp_path))):
        raise RuntimeError(text)
    monkeypatch.setattr("resource.getrlimit", lambda _: (-1, -1))
    (group / "pids.max").write_text("max\n")
    assert with_thread_limits(text, tmp_path) == f"{text}: no thread could be started"


@pytest.mark.model
def test_the_error_of_a_short_file_names_it(tmp_path: Path) -> None:
    from tests.engine.real import load

    folder = tmp_path / "short"
    shutil.copytree(DEMO, folder)
    file = folder / "openvino_model.bin"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(StartError, match=r"openvino_model\.bin is truncated, with 1000 of \d+ bytes"):
        load(model_path=str(folder))
