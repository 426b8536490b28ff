"""`python -m benchmarker` is the `benchmarker` command."""

from benchmarker.core.errors import exit_if_libraries_are_missing

with exit_if_libraries_are_missing():
    from benchmarker.cli.app import main

main()
