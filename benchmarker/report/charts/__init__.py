"""Charts of a comparison, made of the rows of the tables. A chart without data is left out."""
