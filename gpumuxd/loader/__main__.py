"""Entry point of `python -m gpumuxd.loader <fd>`."""

import sys

from gpumuxd.loader.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
