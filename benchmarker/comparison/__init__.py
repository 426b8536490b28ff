"""From records to comparable rows: aggregation, verdicts, budgets, verification."""
