"""Sweeps over several GPUs and hosts: a place measures a whole round, on one card with its own share of the cores."""
