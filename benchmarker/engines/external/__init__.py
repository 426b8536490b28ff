"""Engines that people serve with, each in a process and a Python environment of its own: their pins exclude ours."""
