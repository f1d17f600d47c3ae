"""Tables of docs/calibration.md: how far each engine is from exact."""

from collections.abc import Mapping
from typing import Any

from bayesieve.text import markdown_table
from studies.calibration import NAMES, NOISES, SIZES, WORLDS
from studies.record import Record, Row

_WORDS = {
    "map": "`map`", "laplace": "`laplace` around `map`", "flat-vi": "`flat-vi`", "sbnn": "`sbnn`",
    "bmr": "`bmr`", "sgld": "`sgld`", "sghmc": "`sghmc`", "tdamp": "`tdamp`",
}  # fmt: skip


def _rows(record: Record) -> dict[str, Row]:
    return {row["name"]: row for row in record["rows"]}


def _cell(numbers: Mapping[str, Any], name: str) -> str:
    value = numbers.get(name)
    return "" if value is None else f"{value:.2f}"


def exact_table(record: Record) -> str:
    """One line per engine: mean, std and standardised error in each world, and nats."""
    rows, lines = _rows(record), []
    for name in NAMES:
        cells = []
        for world in WORLDS:
            numbers = rows[f"{world}, {name}"]["metrics"]
            cells += [_cell(numbers, key) for key in ("mean_off", "std_ratio", "z", "nats")]
        lines.append((_WORDS[name], *cells))
    parts = ("mean off", "std", "z", "nats")
    header = ("engine", *(f"{world}: {part}" for world in WORLDS for part in parts))
    return "\n".join([markdown_table(header, lines), "", _about(record)])


def ranks_table(record: Record) -> str:
    """Distance of the ranks of the truth from uniform, by engine and world."""
    rows, lines = _rows(record), []
    for name in NAMES[1:]:
        cells = []
        for world in WORLDS:
            numbers = rows[f"{world}, {name}"]["metrics"]
            mark = "" if numbers["ks"] <= numbers["ks_limit"] else " *"
            cells.append(f"{numbers['ks']:.3f}{mark}")
        lines.append((_WORDS[name], *cells))
    limits = [rows[f"{world}, sbnn"]["metrics"]["ks_limit"] for world in WORLDS]
    lines.append(("an exact one stays below (95 %)", *(f"{limit:.3f}" for limit in limits)))
    return markdown_table(("engine", *WORLDS), lines)


def inclusion_table(record: Record) -> str:
    """Inclusion of sbnn against the sum over all models."""
    rows, lines = _rows(record), []
    for kind, words in (("independent", "independent"), ("correlated", "correlation .9")):
        for starts in (1, 8):
            numbers = rows[f"enumeration, {kind}, {starts}"]["metrics"]
            lines.append((words, str(starts), _cell(numbers, "inclusion_off"),
                          _cell(numbers, "inclusion_worst")))  # fmt: skip
    header = ("columns", "starts averaged", "mean distance", "worst of 8 weights, on average")
    return markdown_table(header, lines)


def coverage_table(record: Record) -> str:
    """Coverage of 90 % intervals by engine, rows and noise."""
    rows, lines = _rows(record), []
    cells = [(n, noise) for n in SIZES for noise in NOISES]
    for name in NAMES:
        found = [rows.get(f"coverage, {n}, {noise}, {name}") for n, noise in cells]
        if all(row is not None for row in found):
            numbers = [row["metrics"] for row in found if row is not None]
            shown = [f"{one['coverage']:.3f} ± {one['error']:.3f}" for one in numbers]
            lines.append((_WORDS[name], *shown))
    return markdown_table(("engine", *(f"n {n}, {noise}" for n, noise in cells)), lines)


def _about(record: Record) -> str:
    machine, n_sets = record["machine"], record["settings"]["n_sets"]
    return (
        f"`{record['command']}`: {n_sets} data sets, {machine['device']}, torch "
        f"{machine['torch']}, {record['date']}."
    )
