"""Runs the console command: `python -m lean_ovms`."""

import sys

try:
    from .cli.main import main

    if __name__ == "__main__":
        main()
except KeyboardInterrupt:  # before main
    sys.exit(130)
