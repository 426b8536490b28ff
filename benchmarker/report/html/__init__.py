"""The report: a comparison as one page to look at."""
