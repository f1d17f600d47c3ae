"""Small adapters to the tools of others: loops that train, logs that people watch, distillation."""
