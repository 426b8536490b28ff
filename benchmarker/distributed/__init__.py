"""Processes that compute together, each on its own device: start, messages, failure detection."""
