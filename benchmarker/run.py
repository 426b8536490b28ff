"""`python -m benchmarker.run`, the older spelling of `benchmarker run`."""

from benchmarker.cli.run import main

if __name__ == "__main__":
    main()
