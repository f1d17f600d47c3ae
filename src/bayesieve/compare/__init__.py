"""Methods side by side: one network, one data set, one budget of gradient evaluations.

`measuring` trains and scores one method, `ranking` says which differences mean something, `reading`
puts them into words. Nothing here knows the names of engines: see `cli.comparing`.
"""

from bayesieve.compare.measuring import Budget, Method, measure
from bayesieve.compare.ranking import Standing, standings
from bayesieve.compare.reading import reading

__all__ = ["Budget", "Method", "Standing", "measure", "reading", "standings"]
