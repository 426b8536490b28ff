"""`python -m benchmarker` is the `benchmarker` command."""

from benchmarker.cli import main

main()
