"""Implementations of mixers."""
