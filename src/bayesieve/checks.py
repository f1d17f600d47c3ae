"""Argument checks with one wording: who: what must hold, what came, what to do."""

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from numbers import Integral
from typing import Any, TypeVar

_LONGEST = 100  # characters of a word that is compared with known ones
_T = TypeVar("_T")


class _Auto(Enum):
    """A setting that nobody chose: `fit` replaces `AUTO` with the recommended value."""

    AUTO = "AUTO"

    def __repr__(self) -> str:
        return self.name

    def __bool__(self) -> bool:
        return False


AUTO: Any = _Auto.AUTO
"""The only value of a setting that means "not chosen"; as a switch it is off.

`fit` puts the recommended value in its place (`engines.recipes`), a loop by hand the plain one.
"""


def chosen(value: _T, plain: _T) -> _T:
    """Return a setting, or its plain value where it is AUTO, also model by model of a population.

    Example:
        >>> chosen(AUTO, 0.1), chosen(0.5, 0.1), chosen((0.5, AUTO), 0.1)
        (0.1, 0.5, (0.5, 0.1))
    """
    if isinstance(value, tuple):
        return tuple(plain if one is AUTO else one for one in value)  # type: ignore[return-value]
    return plain if value is AUTO else value


def check_positive(who: str, **values: float | tuple[float, ...]) -> None:
    """Raise unless every value (each entry of a tuple) is a finite number > 0.

    Example:
        >>> check_positive("SBNN", lr=1e-3)
        >>> check_positive("SBNN", lr=-1.0)
        Traceback (most recent call last):
        ValueError: SBNN: lr must be > 0, got -1.0.
    """
    for name, number in _numbers(who, values):
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"{who}: {name} must be > 0, got {number}.")


def check_counts(who: str, **values: int | tuple[int, ...]) -> None:
    """Raise unless every value (each entry of a tuple) is a whole number > 0.

    Example:
        >>> check_counts("mlp", widths=(400, 0))
        Traceback (most recent call last):
        ValueError: mlp: widths must be > 0, got 0.
    """
    for name, value in values.items():
        for count in value if isinstance(value, tuple) else (value,):
            if isinstance(count, bool) or not isinstance(count, Integral):
                raise TypeError(f"{who}: {name} must be a whole number, got {count!r}.")
    check_positive(who, **values)


def check_not_negative(who: str, **values: float | tuple[float, ...]) -> None:
    """Raise unless every value is a finite number >= 0."""
    for name, number in _numbers(who, values):
        if not (math.isfinite(number) and number >= 0):
            raise ValueError(f"{who}: {name} must be >= 0, got {number}.")


def check_fraction(
    who: str, *, open_ends: bool = False, **values: float | tuple[float, ...]
) -> None:
    """Raise unless every value lies in [0, 1], or strictly inside with `open_ends`."""
    for name, number in _numbers(who, values):
        inside = 0 < number < 1 if open_ends else 0 <= number <= 1
        if not inside:
            bounds = "strictly between 0 and 1" if open_ends else "between 0 and 1"
            percent = f" Write {number:g} % as {number / 100:g}." if 1 < number <= 100 else ""
            raise ValueError(f"{who}: {name} must be {bounds}, got {number}.{percent}")


def check_choice(who: str, name: str, value: str, choices: Iterable[str]) -> None:
    """Raise unless `value` is one of `choices`; the message suggests the nearest one.

    Example:
        >>> check_choice("prune", "score", "snrr", ("snr", "magnitude"))
        Traceback (most recent call last):
        ValueError: prune: score must be one of snr, magnitude; got 'snrr'. Did you mean 'snr'?
    """
    known = list(choices)
    if value not in known:
        listed = ", ".join(known)
        hint = did_you_mean(value, known)
        raise ValueError(f"{who}: {name} must be one of {listed}; got {value!r}.{hint}")


def check_kind(who: str, name: str, value: object, *kinds: type) -> None:
    """Raise unless `value` is an instance of one of some classes.

    Example:
        >>> check_kind("SBNN", "lr", "fast", int, float)
        Traceback (most recent call last):
        TypeError: SBNN: lr must be int or float, got 'fast'.
    """
    if not isinstance(value, kinds):
        listed = " or ".join(kind.__name__ for kind in kinds)
        shown = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
        raise TypeError(f"{who}: {name} must be {listed}, got {shown}.")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the closest known word, or an empty string."""
    if len(word) > _LONGEST:
        return ""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_seed(who: str, **values: int) -> None:
    """Raise unless every value is a whole number from 0 to 2^63 - 2 (a run uses the next one too).

    Example:
        >>> check_seed("fit", seed=-1)
        Traceback (most recent call last):
        ValueError: fit: seed must be a whole number from 0 to 2^63 - 2, got -1.
    """
    for name, value in values.items():
        if not isinstance(value, Integral) or not 0 <= value <= 2**63 - 2:
            bounds = "a whole number from 0 to 2^63 - 2"
            raise ValueError(f"{who}: {name} must be {bounds}, got {value}.")


def _numbers(
    who: str, values: Mapping[str, float | tuple[float, ...]]
) -> Iterator[tuple[str, float]]:
    """Every number that was chosen, with the name of its argument; raises for what is none."""
    for name, value in values.items():
        for number in value if isinstance(value, tuple) else (value,):
            if number is AUTO:
                continue
            if isinstance(number, str) or not hasattr(number, "__float__"):
                raise TypeError(f"{who}: {name} must be a number, got {number!r}.")
            yield name, number
