"""Engines that run a transformers model in this process: the decode step is what differs between them."""
