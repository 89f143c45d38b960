"""python -m lean_ovms"""

import sys

try:
    from .cli import main

    if __name__ == "__main__":
        main()
except KeyboardInterrupt:  # while all is imported; later it drains
    sys.exit(130)
