"""tools/older_cpu.py runs a command, and what that command starts, as on a CPU without AVX-512, bfloat16 or AMX."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools import older_cpu

ASKED = """
import json, numpy, openvino
names = numpy._core._multiarray_umath.__cpu_features__
plugin = openvino.Core()
print(json.dumps({
    "precision": plugin.get_property("CPU", "INFERENCE_PRECISION_HINT").to_string(),
    "bf16": "BF16" in plugin.get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
    "features": [name for name in names if names[name]],
    "libraries": open("/proc/self/maps").read().count("older_cpu.so"),
}))
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.older_cpu", *command], capture_output=True, text=True, timeout=300
    )


def seen(*options: str) -> dict[str, Any]:
    """What OpenVINO, numpy and /proc report to a process that the command starts."""
    child = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {ASKED!r}]))"
    process = run(*options, sys.executable, "-c", child)
    assert process.returncode == 0, process.stderr
    found: dict[str, Any] = json.loads(process.stdout)
    assert found["libraries"] > 0
    return found


@pytest.fixture
def can_run() -> None:
    if obstacle := older_cpu.obstacle():
        pytest.skip(obstacle)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.usefixtures("can_run")
def test_openvino_and_numpy_see_no_avx512_and_no_bfloat16():
    found = seen()
    assert (found["precision"], found["bf16"]) == ("f32", False)
    assert "AVX2" in found["features"]
    assert [name for name in found["features"] if name.startswith("AVX512")] == []


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.usefixtures("can_run")
def test_avx512_can_be_kept():
    found = seen("--keep-avx512")
    assert (found["precision"], found["bf16"]) == ("f32", False)
    assert not {"AVX512FP16", "AVX512BF16"} & set(found["features"])
    assert ("AVX512F" in found["features"]) == ("avx512f" in older_cpu.CPUINFO.read_text("utf-8").split())


@pytest.mark.usefixtures("can_run")
@pytest.mark.parametrize(
    ("command", "status"), [("exit 3", 3), ("kill -TERM $$", 143), ("kill -SEGV $$", 139), ("test -f $LD_PRELOAD", 0)]
)
@pytest.mark.slow
def test_the_status_is_that_of_the_command(command, status):
    assert run("sh", "-c", command).returncode == status


@pytest.mark.usefixtures("can_run")
@pytest.mark.slow
def test_a_program_with_its_own_handler_of_sigsegv_runs():
    process = run(str(older_cpu.compiler()), "-fsyntax-only", str(older_cpu.SOURCE))
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.usefixtures("can_run")
@pytest.mark.slow
def test_a_command_that_cannot_be_started_is_named():
    process = run("no-such-command")
    assert (process.returncode, process.stderr) == (1, "older_cpu: no-such-command: No such file or directory\n")


def machine(monkeypatch: pytest.MonkeyPatch, folder: Path, flags: str) -> None:
    """What `obstacle` reads is that of a Linux machine on x86-64 with these CPU flags."""
    monkeypatch.setattr(older_cpu, "CPUINFO", folder / "cpuinfo")
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(machine="x86_64"))
    monkeypatch.setattr("sys.platform", "linux")
    older_cpu.CPUINFO.write_text(f"flags : fpu {flags}\n")


def test_a_cpu_that_cannot_fault_cpuid_is_named(monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, "cpuid avx2")
    assert "names no cpuid_fault" in older_cpu.obstacle()


def test_without_a_compiler_the_message_names_one(monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, "cpuid_fault avx2")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert older_cpu.obstacle() == "needs a C compiler: gcc or cc"


def test_another_machine_is_refused(monkeypatch):
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(machine="aarch64"))
    monkeypatch.setattr("sys.argv", ["older_cpu", "true"])
    with pytest.raises(SystemExit, match="older_cpu: needs Linux on x86-64"):
        older_cpu.main()
