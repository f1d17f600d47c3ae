"""Methods side by side: one network, one data set, one budget of gradient evaluations.

`terms` are what a method may spend and is scored on; `measuring` scores one, which `learning`
trains and `thinning` prunes; `ranking` says which differences mean something, `reading` puts them
into words. Nothing here knows the names of engines: see `cli.methods`.
"""

from bayesieve.compare.measuring import measure
from bayesieve.compare.ranking import Standing, standings
from bayesieve.compare.reading import reading, removed_already
from bayesieve.compare.terms import Budget, Method, Scoring
from bayesieve.compare.thinning import reachable

__all__ = [
    "Budget",
    "Method",
    "Scoring",
    "Standing",
    "measure",
    "reachable",
    "reading",
    "removed_already",
    "standings",
]
