"""Engines that generate tokens, in this process or in a process of their own."""
