"""Measurements that print, or write to results/: time, memory and comparisons."""
