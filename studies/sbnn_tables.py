"""Selection of the inputs that matter: the simulated experiments 1 to 4 of [Saha], with figures.

    python -m studies.sbnn_tables --full --out results/sbnn_tables.json --folder figs
    python -m studies.sbnn_tables --quick           # minutes on one CPU core

Protocol: 2,000 examples, 80 % for training; y = Σ f(x_j) β_j Z_j + ε with β_j = j / alpha; all data
sets of a table train as one population. Rows "20-10" use the paper's network; rows "additive" use
hinges of every input and one linear layer, which is ours and is always labelled. Settings were
chosen on other data sets. Errors are in units of the target's variance. Every line of an experiment
is a row of the record; rows computed from them answer the paper's figures and tables.

Paper: about 0.90 of the inputs told rightly at π = 0.2 with the best 20 % kept, at least 0.80 for
every π with the cross-validated proportion; no loss up to 50, 40 and 20 % of the weights removed
at π = 0.2, 0.5 and 0.9. Experiment 5 (UCI) is `studies.uci`.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bayesieve.assess.figures.features import error_path
from bayesieve.checks import check_choice
from bayesieve.select.selection import RULES
from studies.figures import Series, lines, series_of
from studies.harness import Run, asked, chosen, joined, numbers, say, show_page, study_parser, table
from studies.record import Record, Row, flat, make_row
from studies.sbnn_simulations import (
    QUICK,
    Scale,
    cross_validated_accuracy,
    false_discoveries,
    fixed_fraction_accuracy,
    importance_against_effects,
    pruning_curve,
    two_input_importance,
)

Line = dict[str, Any]
Found = Mapping[str, Sequence[Line]]  # lines by experiment


def _d(scale: Scale) -> int:
    """The paper's 100 inputs, unless so many are not asked for."""
    return 100 if 100 in scale.dims else scale.dims[0]


EXPERIMENTS: Mapping[str, Callable[[Scale], list[Line]]] = {
    "e1": lambda scale: list(two_input_importance(scale)),
    "e2": lambda scale: [r for net in scale.nets for r in importance_against_effects(scale, net)],
    "e3": lambda scale: [r for net, d in product(scale.nets, scale.dims)
                         for r in fixed_fraction_accuracy(scale, net, d)],
    "e3-cv": lambda scale: [cross_validated_accuracy(scale, s, _d(scale)) for s in scale.shares],
    "e4": lambda scale: [r for s in (0.2, 0.5, 0.9) for r in pruning_curve(scale, s, _d(scale))],
    "fdr": lambda scale: [false_discoveries(scale, _d(scale))],
}  # fmt: skip
# What tells the lines of an experiment apart.
KEYS = {"e1": ("mix",), "e2": ("net", "d", "nonlinear", "alpha"), "e3": ("net", "d", "alpha"),
        "e3-cv": ("share",), "e4": ("share", "removed"), "fdr": ("level",)}  # fmt: skip
_PART = ("shares", "dims", "nets", "device", "at_once")  # of a scale: parts may differ in them
_OF_FOLDS = ("n_folds", "fold_epochs")  # only "e3-cv" depends on them


def row_of(experiment: str, line: Mapping[str, Any], scale: Mapping[str, Any]) -> Row:
    """One line of an experiment as a row of the record."""
    numbers = flat(line)
    known = dict.fromkeys((*KEYS[experiment], "d", "n_sets"))
    setting = {"experiment": experiment}
    setting |= {key: numbers.pop(key) for key in known if key in numbers}
    if experiment == "e3-cv":
        setting |= {key: scale[key] for key in _OF_FOLDS}
    seeds = {"e1": 1, "e2": min(scale["n_sets"], 5), "fdr": scale["fdr_sets"]}
    name = "/".join([experiment, *(str(setting[key]) for key in KEYS[experiment])])
    metrics = {key: value for key, value in numbers.items() if not isinstance(value, list)}
    row = make_row(name, setting, [], seeds=seeds.get(experiment, scale["n_sets"]),
                   metrics=metrics)  # fmt: skip
    detail = {key: value for key, value in numbers.items() if isinstance(value, list)}
    return {**row, "detail": detail}


def found_in(record: Record) -> dict[str, list[Line]]:
    """The lines of every experiment of a record, in the order of what tells them apart."""
    result: dict[str, list[Line]] = {}
    for row in record["rows"]:
        if not row.get("derived"):
            line = {**row["setting"], **row["metrics"], **row["detail"]}
            result.setdefault(row["setting"]["experiment"], []).append(line)
    for experiment, rows in result.items():
        rows.sort(key=lambda line: [line[key] for key in KEYS[experiment]])
    return result


def derived(record: Record) -> list[Row]:
    """The numbers that answer the paper's figures and tables, as rows."""
    n_sets = record["settings"]["n_sets"]
    return [make_row(key, {}, [], seeds=n_sets, metrics=numbers)
            for key, numbers in findings(found_in(record)).items()]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen experiments; write the record, and figures to --folder."""
    parser = study_parser(__doc__, "--join", quick="two data sets a cell, short runs",
                          full="20 (fdr: 100) data sets a cell")  # fmt: skip
    parser.add_argument("--only", default=",".join(EXPERIMENTS), help="comma list of experiments")
    parser.add_argument("--sets", type=int, help="data sets a cell, in place of 5 (full: 20)")
    parser.add_argument("--dims", help="comma list of numbers of inputs for e3, in place of all")
    parser.add_argument("--nets", help="20-10 or additive for e2 and e3, in place of both")
    parser.add_argument("--shares", type=numbers, help="comma list of π for e3-cv, in place of all")
    parser.add_argument("--at-once", type=int, help="networks per population; memory grows with it")
    parser.add_argument("--folder", type=Path, help="where figures go")
    options = parser.parse_args(arguments)
    if options.join is not None:
        flags = ("only", "shares", "dims", "nets", "at-once", "device", "out")
        _show(joined(options.join, "sbnn_tables", options.out, flags, derived), options.folder)
        return 0
    names = chosen("sbnn_tables", "experiment", options.only, EXPERIMENTS)
    scale = _scale(options)
    sizes = asdict(scale)
    settings = {key: value for key, value in sizes.items() if key not in (*_PART, *_OF_FOLDS)}
    run = Run("sbnn_tables", arguments, options, settings=settings, test_reads=None)
    for name in names:
        if any(row["setting"].get("experiment") == name for row in run.rows):
            continue
        started = time.perf_counter()
        for line in EXPERIMENTS[name](scale):
            run.add(row_of(name, line, sizes))
        run.derive(derived(run.record))
        run.write()
        say(f"{name:<6} {time.perf_counter() - started:.0f} s")
    _show(run.record, options.folder)
    return run.finish()


def _show(record: Record, folder: Path | None) -> None:
    if folder is not None:
        draw(found_in(record), folder)
    show_page(page(record), None if folder is None else folder / "sbnn_tables.md")


def _scale(options: argparse.Namespace) -> Scale:
    base = QUICK if options.quick else Scale() if options.full else Scale(5, fdr_sets=20)
    if options.device == "cuda":
        base = replace(base, at_once=1024)
    if options.sets is not None:
        base = replace(base, n_sets=options.sets, fdr_sets=options.sets)
    if options.nets is not None:
        check_choice("sbnn_tables", "net", options.nets, base.nets)
        base = replace(base, nets=(options.nets,))
    if options.dims is not None:
        base = replace(base, dims=tuple(int(d) for d in options.dims.split(",")))
    return replace(base, **asked(options, "device", "shares", "at_once"))


def page(record: Record) -> str:
    """Markdown: the lines of every experiment, then the numbers that answer the paper."""
    pieces = ["# Which inputs matter", f"`{record['command']}`"]
    experiments = dict.fromkeys(row["setting"].get("experiment") for row in record["rows"])
    for experiment in experiments:
        rows = [row for row in record["rows"] if row["setting"].get("experiment") == experiment]
        names = dict.fromkeys(name for row in rows for name in row["metrics"])
        pieces += [f"## {experiment or 'Answers'}", table(rows, list(names))]
    return "\n\n".join(pieces) + "\n"


def _rules(line: Line) -> list[str]:
    return [key.removesuffix("/fdr") for key in line if key.endswith("/fdr")]


def findings(result: Found) -> dict[str, dict[str, float]]:
    """The numbers that answer the paper's figures and tables, by what they answer."""
    answers: dict[str, dict[str, float]] = {}
    if "e1" in result:
        pairs = torch.tensor([[r["share"], r["psi_2"]] for r in result["e1"]]).T
        answers["figure-1"] = {"correlation": float(torch.corrcoef(pairs)[0, 1])}
    for number, nonlinear in ((2, False), (3, True)):
        values = [r["correlation"] for r in result.get("e2", ())
                  if r["nonlinear"] == nonlinear and r["net"] == "20-10"]  # fmt: skip
        if values:
            answers[f"figure-{number}"] = {"correlation": statistics.fmean(values)}
    for net, key in (("20-10", "selection"), ("additive", "selection-additive")):
        every = [r for r in result.get("e3", ()) if r["net"] == net]
        usual = [r["accuracy"] for r in every if r["d"] == 100]
        if usual:
            answers[key] = {"accuracy": statistics.fmean(usual)}
        if every:
            answers.setdefault(key, {})["lowest"] = min(r["accuracy"] for r in every)
    if "e3-cv" in result:
        answers["validated"] = {"accuracy": min(r["generous/accuracy"] for r in result["e3-cv"])}
        for r in result["e3-cv"]:
            if r["share"] == 0.2:
                answers["refit"] = {"ratio": r["mse/refit"] / r["mse/full BNN"]}
    if "e4" in result:
        answers["droprate"] = {"points": len(result["e4"])}
    for r in result.get("fdr", ()):
        for rule in _rules(r):
            answers[f"fdr-{rule}"] = {name: r[f"{rule}/{name}"] for name in ("fdr", "power")}
    return answers


def draw(result: Found, folder: Path) -> None:
    """Figures after the paper's 1 to 10, as PNG files."""
    if "e1" in result:
        shares = [r["share"] for r in result["e1"]]
        series = {f"ψ{mark}": (shares, [r[f"psi_{i}"] for r in result["e1"]])
                  for i, mark in ((1, "₁"), (2, "₂"))}  # fmt: skip
        lines(series, folder / "figure_1.png", title="Importance of two inputs",
              xlabel="share of variance of input 2", ylabel="ψ")  # fmt: skip
    for number, nonlinear in ((2, False), (3, True)):
        values = [r for r in result.get("e2", ()) if r["nonlinear"] == nonlinear]
        if values:
            kind = "non-linear" if nonlinear else "linear"
            lines(_by(values, ("net", "d"), "alpha", "correlation"),
                  folder / f"figure_{number}.png", title=f"φ and effect sizes, {kind}",
                  xlabel="alpha", ylabel="correlation")  # fmt: skip
    for number, net in ((4, "20-10"), (5, "additive")):
        values = [r for r in result.get("e3", ()) if r["net"] == net]
        if values:
            lines(_by(values, ("d",), "alpha", "accuracy"), folder / f"figure_{number}.png",
                  title=f"Inputs told rightly, {net}", xlabel="alpha", ylabel="accuracy",
                  level=0.9)  # fmt: skip
    if "e3-cv" in result:
        _draw_proportions(result["e3-cv"], folder)
    if "e4" in result:
        lines(_by(result["e4"], ("share",), "removed", "mse"), folder / "figure_9.png",
              title="Error against weights removed", xlabel="weights removed",
              ylabel="test error / variance", percent_x=True)  # fmt: skip
    for r in result.get("fdr", ()):
        rules = _rules(r)
        lines({rule: ([r[f"{rule}/fdr"]], [r[f"{rule}/power"]]) for rule in rules},
              folder / "figure_10.png", title=f"Level {r['level']}",
              xlabel="realised false-discovery rate", ylabel="power")  # fmt: skip


def _draw_proportions(rows: Sequence[Line], folder: Path) -> None:
    shares = [r["share"] for r in rows]
    lines({rule: (shares, [r[f"{rule}/accuracy"] for r in rows]) for rule in (*RULES, "fixed")},
          folder / "figure_6.png", title="Inputs told rightly", level=0.85,
          xlabel="π, share of inputs that matter", ylabel="accuracy")  # fmt: skip
    kept = {str(rule): (shares, [r[f"{rule}/proportion"] for r in rows]) for rule in RULES}
    lines({**kept, "truth": (shares, shares)}, folder / "figure_7.png",
          title="Share of inputs kept", xlabel="π", ylabel="share kept")  # fmt: skip
    compared = [(key.removeprefix("mse/"), r["share"], error) for r in rows
                for key, error in r.items() if key.startswith("mse/")]  # fmt: skip
    lines(series_of(compared), folder / "figure_8.png", title="Test error after selection",
          xlabel="π", ylabel="test error / variance")  # fmt: skip
    middle = rows[len(rows) // 2]
    title = f"One data set, π = {middle['share']}"
    error_path(middle["proportions"], middle["path"], folder / "path.png", title=title)


def _by(rows: Sequence[Line], keys: tuple[str, ...], x: str, y: str) -> Series:
    """One curve for every combination of some keys."""
    return series_of((", ".join(f"{key} {row[key]}" for key in keys), row[x], row[y])
                     for row in rows)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
