"""`python -m benchmarker` is the `benchmarker` command."""

from benchmarker.cli.app import main

main()
