"""Tables, pages and charts of a comparison."""
