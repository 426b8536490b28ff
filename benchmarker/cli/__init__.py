"""Command line: each verb checks its arguments, calls the core, and prints."""
