"""Training: `fit` and its loop, schedules, checkpoints, captured steps."""
