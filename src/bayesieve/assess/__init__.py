"""How good a model is: predictions, metrics, calibration, figures."""
