"""Tables of the documentation, made from the records in results/; no number is typed by hand."""
