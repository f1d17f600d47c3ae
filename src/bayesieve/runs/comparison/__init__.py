"""Methods side by side: one network, one data set, one budget of gradient evaluations.

`terms` are what a method may spend and is scored on; `measuring` scores one, which `learning`
trains and `thinning` prunes; `ranking` says which differences mean something, `reading` puts them
into words. Nothing here knows the names of engines: see `cli.methods`.
"""

from bayesieve.runs.comparison.budget import Budget, Method, Scoring
from bayesieve.runs.comparison.measure import measure
from bayesieve.runs.comparison.rank import Standing, standings
from bayesieve.runs.comparison.sparse import reachable
from bayesieve.runs.comparison.words import reading, removed_already

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
