"""`python -m benchmarker` is the `benchmarker` command."""

import sys

try:
    from benchmarker.cli.app import main
except ModuleNotFoundError as error:
    # Run by a Python that has none of the libraries: a traceback says that less well.
    if (error.name or "").startswith("benchmarker"):
        raise
    sys.exit(
        f"error: {error.name} is not installed for {sys.executable}; activate the environment "
        "(. .venv/bin/activate), or set one up with bash script/environment.sh"
    )

main()
