"""Implementations of token mixers, one file for each library that they come from."""
