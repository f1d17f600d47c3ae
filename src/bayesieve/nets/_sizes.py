"""Checks of the sizes every factory of this room takes."""

from bayesieve.checks import check_positive


def check_sizes(who: str, input_shape: tuple[int, ...], n_outputs: int) -> None:
    """Raise unless `input_shape` is a non-empty tuple of counts and `n_outputs` a count."""
    if not isinstance(input_shape, tuple) or not input_shape:
        raise TypeError(
            f"{who}: input_shape must be a non-empty tuple such as (1, 28, 28), "
            f"got {input_shape!r}. Leave the batch size out."
        )
    check_counts(who, input_shape=input_shape, n_outputs=(n_outputs,))


def check_counts(who: str, **values: tuple[int, ...]) -> None:
    """Raise unless every entry of every tuple is a whole number > 0.

    Example:
        >>> check_counts("mlp", widths=(400, 0))
        Traceback (most recent call last):
        ValueError: mlp: widths must be > 0, got 0.
    """
    for name, counts in values.items():
        for count in counts:
            if isinstance(count, bool) or not isinstance(count, int):
                raise TypeError(f"{who}: {name} must hold whole numbers, got {count!r}.")
        check_positive(who, **{name: counts})
