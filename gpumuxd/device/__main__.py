"""`python -m gpumuxd.device <fd>`: run by the parent, with its end of a socket pair."""

import sys

from gpumuxd.device.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
