"""Quantizations, one file each, and their loading."""
