"""Errors, numbers, text and terminal output, used by every other package."""
