"""Devices are chosen by names and files, and models load on them."""

import subprocess
import sys

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.loading import settings
from lean_ovms.engine.worker.text_model import load_text_model
from lean_ovms.errors import StartError

MODEL = {"vocab_size": 100, "max_position_embeddings": 8192, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("available", "chosen"),
    [(["CPU"], "CPU"), (["CPU", "NPU"], "CPU"), (["CPU", "GPU"], "GPU"), (["CPU", "GPU.0", "GPU.1", "GPU.2"], "GPU.2")],
)
def test_auto_is_the_gpu_with_the_most_memory_of_its_own_or_else_the_cpu(available, chosen):
    memory = {"GPU": 0, "GPU.0": 0, "GPU.1": 8 << 30, "GPU.2": 16 << 30}
    assert settings.chosen_device("auto", available, memory.__getitem__) == chosen


@pytest.mark.parametrize("name", ["CPU", "NPU", "AUTO", "AUTO:GPU,CPU", "HETERO:GPU.0,GPU.1"])
def test_other_devices_are_taken_as_they_are(name):
    assert settings.chosen_device(name, ["CPU", "GPU"], lambda _: 0) == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CPU", ["CPU"]),
        ("AUTO", ["CPU", "GPU"]),
        ("AUTO:GPU,CPU", ["GPU", "CPU"]),
        ("HETERO:GPU.0,GPU.1", ["GPU.0", "GPU.1"]),
        ("BATCH:CPU(16)", ["CPU"]),
    ],
)
def test_a_name_may_stand_for_several_devices(name, expected):
    assert settings.devices_in(name, ["CPU", "GPU"]) == expected


@pytest.mark.parametrize(
    ("asked", "missing"),
    [
        ("CPU", ""),
        ("GPU", "GPU"),
        ("HETERO:CPU,NPU", "NPU"),
        ("AUTO", ""),
        ("", ""),
        ("cpu", "cpu"),
        ("GPU.1", "GPU.1"),
    ],
)
def test_a_device_that_is_not_there_is_named(asked, missing):
    assert settings.missing_device([asked], ["CPU"]) == missing


@pytest.mark.parametrize(
    ("name", "size"), [("CPU", 32), ("HETERO:CPU", 32), ("AUTO:CPU", 32), ("GPU", 16), ("AUTO:GPU,CPU", 16)]
)
def test_blocks_are_large_only_where_nothing_but_a_cpu_computes(name, size):
    """A value that is too small is safe, one that is too large is not."""
    assert settings.tokens_per_block(settings.devices_in(name, ["CPU"])) == size


@pytest.mark.model
def test_auto_is_looked_up_in_the_machine():
    found, available = settings.on_device(Config(target_device="auto"))
    assert found.target_device == "CPU" or found.target_device in available


@pytest.mark.model
@pytest.mark.parametrize("options", [{"target_device": "XPU"}, {"draft_device": "XPU", "draft_model_path": "x"}])
def test_a_device_that_does_not_exist_stops_the_start(options):
    with pytest.raises(StartError, match="XPU: this machine has no such device"):
        settings.on_device(Config(**options))


@pytest.mark.model
@pytest.mark.parametrize("device", ["auto", "HETERO:CPU"])
def test_models_load_on_virtual_devices(device):
    pipeline = load_text_model(Config(target_device=device, cache_size=1))
    assert pipeline.info.block_size == 32
    assert pipeline.info.kv_blocks > 100


FIRST_CALLS = """
import sys, threading
from lean_ovms.engine.loading import settings
sys.setswitchinterval(1e-7)
together = threading.Barrier(4)
def first():
    together.wait()
    settings.ov.Type.f32.to_dtype()
threads = [threading.Thread(target=first, daemon=True) for _ in range(4)]
for each in threads: each.start()
for each in threads: each.join()
"""


@pytest.mark.slow
def test_threads_may_read_the_first_tensors_at_once():
    """Without the call in devices, nearly every such process waits for ever."""
    subprocess.run([sys.executable, "-c", FIRST_CALLS], check=True, timeout=60)
