"""Quality of a model: predictions, metrics, calibration, figures."""
