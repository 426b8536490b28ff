"""Sweeps: all variants of a config in rounds of fresh processes, on one or several workers."""
