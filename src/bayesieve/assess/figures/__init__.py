"""Figures as PNG files: plain arrays and a path go in, the path comes out.

Every function draws on a new `Figure` with the Agg canvas, so nothing global is touched and no
display is needed; the file appears whole or not at all.

Modules: `curves` (over epochs or strengths), `sparsity` (what is kept and what it costs), `quality`
(calibration, confusion, uncertainty), `examples` (images, weights and regression fits), `features`
(importance of inputs), `style` (palette, axes, saving).
"""

from bayesieve.assess.figures.curves import training_curves
from bayesieve.assess.figures.examples import certain_examples, first_layer_map, regression_fit
from bayesieve.assess.figures.quality import (
    confusion_matrix,
    reliability_diagram,
    uncertainty_per_class,
)
from bayesieve.assess.figures.sparsity import (
    error_vs_sparsity,
    inclusion_cdf,
    kept_per_layer,
    sieve_overview,
)

__all__ = [
    "certain_examples",
    "confusion_matrix",
    "error_vs_sparsity",
    "first_layer_map",
    "inclusion_cdf",
    "kept_per_layer",
    "regression_fit",
    "reliability_diagram",
    "sieve_overview",
    "training_curves",
    "uncertainty_per_class",
]
