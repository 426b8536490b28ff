"""Rows made of records, speed-ups, rankings, budgets and the gate."""
