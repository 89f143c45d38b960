"""python -m tools.older_cpu [--keep-avx512] COMMAND ... runs a command as on a CPU without AVX-512, bfloat16 and AMX.

OpenVINO computes in bfloat16 where the CPU has it, and in float32 elsewhere; texts can differ. Its CPU plugin (2026.4)
has no variable that hides a feature, so CPUID itself is made to answer less (older_cpu.c): to the command and to every
process that it starts with its environment. Of two runs inside each other the inner one counts. Needs Linux on x86-64,
a C compiler, and a CPU and kernel that let CPUID fault (`cpuid_fault` in /proc/cpuinfo).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
CPUINFO = Path("/proc/cpuinfo")
KEEP = "OLDER_CPU_KEEP_AVX512"


def obstacle() -> str:
    """Why no command can be run here; empty when it can."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return "needs Linux on x86-64"
    if "cpuid_fault" not in CPUINFO.read_text("utf-8").split():
        return f"this CPU or kernel cannot make CPUID fault: {CPUINFO} names no cpuid_fault"
    return "" if compiler() else "needs a C compiler: gcc or cc"


def compiler() -> str | None:
    return shutil.which("gcc") or shutil.which("cc")


def build(folder: Path) -> Path:
    """The library, compiled into `folder`. Raises CalledProcessError when the compiler fails."""
    library = folder / "older_cpu.so"
    subprocess.run([str(compiler()), "-O1", "-Wall", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def run(command: list[str], keep_avx512: bool) -> int:
    """The exit status of the command, as a shell gives it. Raises OSError when it cannot be started."""
    environment = {name: value for name, value in os.environ.items() if name != KEEP}
    with tempfile.TemporaryDirectory(prefix="older_cpu.") as folder:
        library = build(Path(folder))
        others = [p for p in environment.get("LD_PRELOAD", "").split(":") if p and Path(p).name != library.name]
        environment["LD_PRELOAD"] = ":".join([str(library), *others])
        if keep_avx512:
            environment[KEEP] = "1"
        process = subprocess.Popen(command, env=environment)
        # The library must stay until the command has ended. A terminal sends SIGINT to the command as well.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        status = process.wait()
    return status if status >= 0 else 128 - status


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.older_cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep-avx512", action="store_true", help="hide bfloat16, FP16 and AMX only")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...")
    options = parser.parse_args()
    if not options.command:
        parser.error("no command")
    if found := obstacle():
        sys.exit(f"older_cpu: {found}")
    try:
        sys.exit(run(options.command, options.keep_avx512))
    except OSError as error:
        sys.exit(f"older_cpu: {options.command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
