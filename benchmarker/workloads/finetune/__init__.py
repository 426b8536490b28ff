"""Workload: one training step of a whole model."""
