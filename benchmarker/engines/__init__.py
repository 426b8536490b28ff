"""Engines that make the tokens, in this process or in a process of their own."""
