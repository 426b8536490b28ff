"""Charts of a comparison for the page and as PNG files, drawn with matplotlib."""
