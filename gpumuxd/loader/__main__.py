"""Entry point of `python -m gpumuxd.loader <fd>`: the starter."""

import sys

from gpumuxd.loader.starter import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
