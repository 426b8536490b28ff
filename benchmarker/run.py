"""`python -m benchmarker.run`, the older spelling of `benchmarker run`."""

from benchmarker.core.outside_environment import one_line_where_libraries_are_missing

with one_line_where_libraries_are_missing():
    from benchmarker.cli.run import main

if __name__ == "__main__":
    main()
