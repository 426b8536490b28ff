"""Comparison and presentation of the records of serving."""
