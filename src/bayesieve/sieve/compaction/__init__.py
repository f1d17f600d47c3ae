"""How a masked network becomes a smaller one: tracing, channel algebra, rewriting, report.

Every activation is a list of channels along one axis. Forwards, `analysis` finds which channels
are constant; backwards, which ones somebody still has to read; `rewrite` then builds the layers
that are left. What one operation does to channels is a rule; `table` says which operation has
which rule, and whatever it does not name is a barrier: all its channels stay.
"""
