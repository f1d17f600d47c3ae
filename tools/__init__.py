"""Programs for those who work on the project: nothing of the package imports them."""
