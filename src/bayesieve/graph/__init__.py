"""Structure of a network: one capture, one table of torch operations, and what reads what."""
