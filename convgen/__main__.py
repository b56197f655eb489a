"""`python -m convgen`, and `convgen`, are the command line."""

import sys


def main() -> int:
    """Runs this process's command line and gives its exit code, also where an interrupt comes while modules load."""
    try:
        from convgen.cli import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
