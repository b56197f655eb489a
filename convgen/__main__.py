"""`python -m convgen` is the command line."""

import sys

from convgen.cli import main

if __name__ == "__main__":
    sys.exit(main())
