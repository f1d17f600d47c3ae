"""A run folder and everything done with it."""
