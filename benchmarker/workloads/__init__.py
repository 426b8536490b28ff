"""Workloads: each package defines a kind of measurement, its specification and its record."""
