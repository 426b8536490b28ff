"""The report: a comparison as one HTML page."""
