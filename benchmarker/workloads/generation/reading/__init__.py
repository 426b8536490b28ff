"""Comparison and presentation of the records of text generation."""
