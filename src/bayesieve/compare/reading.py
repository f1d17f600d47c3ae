"""What a comparison says, in sentences made from its numbers."""

from collections.abc import Sequence

from bayesieve.compare.ranking import Standing

_PHRASES = {
    "error": "has the lowest error",
    "RMSE": "has the lowest RMSE",
    "NLL": "gives the most probable answers (lowest NLL)",
    "ECE": "is best calibrated (lowest ECE)",
    "out-of-distribution AUROC": "tells foreign inputs apart best",
}


def reading(found: Sequence[Standing]) -> list[str]:
    """One sentence per metric: who leads, who is tied with it, and how far the last is behind.

    Example:
        >>> own = Standing("ECE", ("bmr", "map"), (0.01, 0.05), (0.001, 0.002), (1.0, 2.0), None)
        >>> reading([own])
        ['bmr is best calibrated (lowest ECE): 0.0100; map is last: 0.0500.']
    """
    return [_sentence(own) for own in found if len(own.names) > 1]


def _sentence(own: Standing) -> str:
    tied, best = own.tied(), own.names[0]
    what = _PHRASES.get(own.metric, f"has the lowest {own.metric}")
    first = f"{best} {what}: {own.means[0]:.4f}"
    if len(tied) == len(own.names):
        return f"{own.metric}: no method differs from the best by two standard errors ({first})."
    if len(tied) > 1:
        others = ", ".join(name for name in tied if name != best)
        first = f"{best} {what}, {own.means[0]:.4f}, tied within two standard errors with {others}"
    return f"{first}; {own.names[-1]} is last: {own.means[-1]:.4f}."
