"""After engines were killed at random moments, every answer from their directory is right."""

import subprocess
import sys


def test_engines_killed_at_random_moments_leave_nothing_wrong(tmp_path):
    command = [sys.executable, "-m", "tests.features.disk_cache.killed", str(tmp_path), "20", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
