"""Workload: one call of one attention layer."""
