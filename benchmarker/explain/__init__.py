"""Explanations of a variant's speed, from its profile and its timing."""
