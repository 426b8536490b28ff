"""Serving engines, each in its own process and Python environment, because their pinned versions conflict with ours."""
