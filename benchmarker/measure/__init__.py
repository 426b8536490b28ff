"""Measurement of repeats, memory, energy, device limits and profiles."""
