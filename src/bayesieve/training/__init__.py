"""The only loop: fit, schedules, checkpoints, captured steps."""
