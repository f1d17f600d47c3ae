"""What a prediction is worth: OOD scores, intervals, calibration, attacks, comparisons."""
