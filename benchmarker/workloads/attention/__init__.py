"""Attention: one layer's call, in the implementations that there are of it."""
