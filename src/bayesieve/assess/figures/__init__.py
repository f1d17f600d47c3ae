"""Figures as PNG files: plain arrays and a path go in, the path comes out.

Every function draws on a new `Figure` with the Agg canvas, so nothing global is touched and no
display is needed; the file appears whole or not at all.

Modules: `curves` (over epochs or strengths), `quality` (calibration, fits, error against weights
kept), `features` (importance of inputs), `style` (palette, axes, saving). The other pictures of a
run are in its HTML report.
"""

from bayesieve.assess.figures.curves import training_curves as training_curves
from bayesieve.assess.figures.quality import error_vs_sparsity as error_vs_sparsity
from bayesieve.assess.figures.quality import regression_fit as regression_fit
from bayesieve.assess.figures.quality import reliability_diagram as reliability_diagram
