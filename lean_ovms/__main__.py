"""Runs the console command: `python -m lean_ovms`."""

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - without an installation nothing else checks it
    sys.exit("lean_ovms: Python 3.10 or newer is needed, not " + sys.version.split()[0])
try:
    from .cli.main import main

    if __name__ == "__main__":
        main()
except KeyboardInterrupt:  # before main
    sys.exit(130)
except ModuleNotFoundError as error:
    sys.exit(f"lean_ovms: {error} in {sys.executable}: activate the virtual environment, or run: pip install .")
