"""What can be typed after `benchmarker`: a file a verb. Each checks its arguments, calls the core, and prints."""


def main() -> None:
    """Entry of the `benchmarker` command of an installation from before `cli.app`, which still asks for this name."""
    from benchmarker.cli.app import main as start

    start()
