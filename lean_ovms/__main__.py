"""python -m lean_ovms"""

from .cli import main

if __name__ == "__main__":
    main()
