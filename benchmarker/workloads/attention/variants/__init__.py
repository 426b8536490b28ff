"""Implementations of attention, one file each where they are more than a line."""
