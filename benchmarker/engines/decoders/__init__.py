"""Engines that run a transformers model in this process. They differ in how a decode step runs."""
