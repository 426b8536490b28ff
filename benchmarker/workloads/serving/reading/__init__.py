"""Comparison and presentation of text generation beyond the declared axes and metrics."""
