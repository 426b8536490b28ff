"""Traces and kernel names, read without torch."""
