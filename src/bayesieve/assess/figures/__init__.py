"""Figures as PNG files: plain arrays and a path go in, the path comes out.

Every function draws on a new `Figure` with the Agg canvas, so nothing global is touched and no
display is needed; the file appears whole or not at all.

Modules: `curves` (over epochs or strengths), `sparsity` (what is kept and what it costs), `quality`
(calibration, confusion, uncertainty), `examples` (images, weights and regression fits), `features`
(importance of inputs), `headline` (a run as one picture),
`style` (palette, axes, saving).
"""

from bayesieve.assess.figures.curves import training_curves as training_curves
from bayesieve.assess.figures.examples import certain_examples as certain_examples
from bayesieve.assess.figures.examples import first_layer_map as first_layer_map
from bayesieve.assess.figures.examples import regression_fit as regression_fit
from bayesieve.assess.figures.headline import headline_card as headline_card
from bayesieve.assess.figures.quality import confusion_matrix as confusion_matrix
from bayesieve.assess.figures.quality import reliability_diagram as reliability_diagram
from bayesieve.assess.figures.quality import uncertainty_per_class as uncertainty_per_class
from bayesieve.assess.figures.sparsity import error_vs_sparsity as error_vs_sparsity
from bayesieve.assess.figures.sparsity import inclusion_cdf as inclusion_cdf
from bayesieve.assess.figures.sparsity import kept_per_layer as kept_per_layer
from bayesieve.assess.figures.sparsity import sieve_overview as sieve_overview
