"""Speed, behind one door: what runs the definitions of `core` and `engines` in less time.

`backend.chosen_backend` decides once for a run. `twins` has C in place of definitions, `native`
builds it, `stepper` captures CUDA graphs, `evaluator` runs many networks as one.
Nothing here changes what is computed, up to rounding and the source of normals; no engine imports
it.
"""
