"""Comparison of records: table rows, speed-ups, rankings, budgets and the regression gate."""
