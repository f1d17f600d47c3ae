"""Quality of predictions: OOD scores, intervals, calibration, attacks, comparisons."""
