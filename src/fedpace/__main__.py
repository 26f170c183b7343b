"""The `fedpace` command; `python -m fedpace` is the same."""

from __future__ import annotations

import sys
from importlib.metadata import version

from fedpace._base.errors import install_command


def main() -> None:
    """Run the command line, or exit with a message that says what to install."""
    if sys.argv[1:] == ["--version"]:  # needs none of the packages of the command line
        sys.stdout.write(f"{version('fedpace')}\n")
        sys.exit(0)
    try:
        from fedpace.cli import run_command
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("fedpace"):
            raise
        sys.exit(f"error: the command line needs {missing.name!r}: {install_command('sim,data,report')}")
    run_command()


if __name__ == "__main__":
    main()
