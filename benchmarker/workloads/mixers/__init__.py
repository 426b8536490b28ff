"""Workload: one call of a token mixer, softmax or linear."""
