"""The table of docs/calibration.md: how far each engine is from exact."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from bayesieve.text import markdown_table
from studies.calibration import NAMES, NOISES, SIZES, TABLES, WORLDS
from studies.record import Record, Row

Line = tuple[str, str, dict[str, str]]  # check, number of an exact answer, cells by column

_WORLDS = {
    "linear": "conjugate regression",
    "correlated": "the same, correlation .9",
    "logistic": "2-D logistic",
}
_NUMBERS = {"mean_off": ("mean off", "0"), "std_ratio": ("std", "1"), "z": ("z", "1"),
            "nats": ("evidence lost, nats", "0")}  # fmt: skip
_JOINT = "joint model"
_RIVALS = ("least squares", "knockoffs", "lasso")


def table(exact: Record, conformal: Record, selection: Record) -> str:
    """Every check of the suite, one line each, with a column per engine."""
    rows = {row["name"]: row for row in exact["rows"]}
    lines: list[Line] = [*_worlds(rows), *_inclusion(rows), *_coverage(rows)]
    lines += [*_conformal(conformal), *_selection(selection)]
    columns = [*NAMES, _JOINT]
    body = [(check, ideal, *(cells.get(name, "") for name in columns))
            for check, ideal, cells in lines]  # fmt: skip
    header = ("check", "exact", *(f"`{name}`" for name in NAMES), _JOINT)
    about = ", ".join(f"`{record['command']}`" for record in (exact, conformal, selection))
    n_sets, machine = exact["settings"]["n_sets"], exact["machine"]
    note = (
        f"{about}: {n_sets} data sets ({n_sets // 4} of inclusion and of coverage on simulated "
        f"data, {n_sets // 25} splits of each UCI table), {conformal['settings']['n_sets']} tables "
        f"and {selection['settings']['sets']} data sets; {machine['device']}, torch "
        f"{machine['torch']}, {exact['date']}."
    )
    return f"{markdown_table(header, body)}\n\n{note}"


def _worlds(rows: Mapping[str, Row]) -> Iterator[Line]:
    for world in WORLDS:
        names = [name for name in NAMES if f"{world}, {name}" in rows]
        metrics = {name: rows[f"{world}, {name}"]["metrics"] for name in names}
        for key, (word, ideal) in _NUMBERS.items():
            cells = {name: f"{one[key]:.2f}" for name, one in metrics.items() if key in one}
            yield f"{_WORLDS[world]}: {word}", ideal, cells
        ranked = {name: one for name, one in metrics.items() if "ks" in one}
        cells = {
            name: f"{one['ks']:.3f}{'' if one['ks'] <= one['ks_limit'] else ' *'}"
            for name, one in ranked.items()
        }
        limit = next(iter(ranked.values()))["ks_limit"]
        yield f"{_WORLDS[world]}: ranks of the truth", f"< {limit:.3f}", cells


def _inclusion(rows: Mapping[str, Row]) -> Iterator[Line]:
    for kind, words in (("independent", "independent columns"), ("correlated", "correlation .9")):
        for starts in (1, 8):
            numbers = rows[f"enumeration, {kind}, {starts}"]["metrics"]
            mean = "one start" if starts == 1 else f"mean of {starts} starts"
            cell = f"{numbers['inclusion_off']:.2f} (worst {numbers['inclusion_worst']:.2f})"
            yield f"inclusion against 2⁸ models, {words}, {mean}: off", "0", {"sbnn": cell}


def _coverage(rows: Mapping[str, Row]) -> Iterator[Line]:
    kinds = [(f"coverage, {n}, {noise}", f"n {n}, {noise}") for n in SIZES for noise in NOISES]
    kinds += [(f"uci, {table}", f"UCI {table}") for table in TABLES]
    for row, words in kinds:
        names = [name for name in NAMES if f"{row}, {name}" in rows]
        numbers = {name: rows[f"{row}, {name}"]["metrics"] for name in names}
        yield f"90 % intervals cover, {words}", ".90", {
            name: _with_error(one["coverage"], one["error"]) for name, one in numbers.items()
        }  # fmt: skip


def _conformal(record: Record) -> Iterator[Line]:
    for row in record["rows"]:
        one, name = row["metrics"], row["setting"]["settings"].get("engine", "sbnn")
        cell = _with_error(one["coverage"], one["coverage_standard_error"])
        yield f"conformal 90 % intervals cover, {row['name']}", ".88 to .93", {name: cell}


def _selection(record: Record) -> Iterator[Line]:
    designs = [row for row in record["rows"] if row["name"] != "weights"]
    for level in record["settings"]["levels"]:
        key = f"ours fdr {level}"
        rates = [(row["metrics"][key], row["metrics"][f"{key}_standard_error"], row["name"])
                 for row in designs]  # fmt: skip
        rate, error, worst = max(rates)
        where = f"worst of {len(designs)} designs ({worst})"
        yield (f"false discoveries at level {level:g}, {where}", f"< {level:g}",
               {_JOINT: _with_error(rate, error)})  # fmt: skip
        shares = [(power_share(row["metrics"], level), row["name"]) for row in designs
                  if row["setting"]["n_true"]]  # fmt: skip
        share, least = min(shares)
        yield (f"power at level {level:g} over that of the best rival, least ({least})", "> .90",
               {_JOINT: f"{share:.2f}"})  # fmt: skip
    ends = record["settings"]["bins"]
    for i, (low, high) in enumerate(pairwise(ends)):
        if low >= 0.5:
            n, true, total = (sum(row["detail"]["bins"][i][j] for row in designs) for j in range(3))
            cell = _with_error(true / n, (true * (n - true) / n**3) ** 0.5)
            yield (f"inputs of probability {low:g} to {high:g} that matter", f"{total / n:.3f}",
                   {_JOINT: cell})  # fmt: skip


def power_share(metrics: Mapping[str, Any], level: float) -> float:
    """Our power over that of the best rival."""
    rivals: Sequence[float] = [
        metrics[key] for way in _RIVALS if (key := f"{way} power {level}") in metrics
    ]
    return float(metrics[f"ours power {level}"]) / max(rivals)


def _with_error(value: float, error: float) -> str:
    return f"{value:.3f} ± {error:.3f}"
