"""``python -m fedcrab`` and the command ``fedcrab`` are the same program."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it without a traceback."""
    try:
        from fedcrab.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("fedcrab: interrupted before anything was done\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
