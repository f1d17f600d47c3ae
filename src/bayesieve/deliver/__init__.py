"""What goes out: bundles and exports of a compacted model."""
