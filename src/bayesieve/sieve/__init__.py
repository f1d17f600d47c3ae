"""From a posterior to a smaller model: scores, keep rules, masks and pruning schedules."""
