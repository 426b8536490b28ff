"""Workload: attention over one sequence that is split over several GPUs."""
