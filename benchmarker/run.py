"""`python -m benchmarker.run`, the older spelling of `benchmarker run`."""

from benchmarker.core.errors import exit_if_libraries_are_missing

with exit_if_libraries_are_missing():
    from benchmarker.cli.run_command import main

if __name__ == "__main__":
    main()
