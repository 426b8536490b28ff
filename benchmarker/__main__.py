"""`python -m benchmarker` is the `benchmarker` command."""

from benchmarker.core.outside_environment import one_line_where_libraries_are_missing

with one_line_where_libraries_are_missing():
    from benchmarker.cli.app import main

main()
