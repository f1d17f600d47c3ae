"""Which inputs matter: the simulated experiments 1 to 4 of [Saha], with figures.

    python -m studies.sbnn_tables --full --out results/sbnn_tables.json --folder figs
    python -m studies.sbnn_tables --quick           # minutes on one CPU core

Protocol: 2,000 examples, 80 % for training; y = Σ f(x_j) β_j Z_j + ε with β_j = j / alpha; all data
sets of a table train as one population. Rows "20-10" use the paper's network; rows "additive" use
hinges of every input and one linear layer, which is ours and is always labelled. Settings were
chosen on other data sets. Errors are in units of the target's variance.

Paper: about 0.90 of the inputs told rightly at π = 0.2 with the best 20 % kept, at least 0.80 for
every π with the cross-validated proportion; no loss up to 50, 40 and 20 % of the weights removed
at π = 0.2, 0.5 and 0.9. Experiment 5 (UCI) is `studies.uci`.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from bayesieve.checks import check_choice
from bayesieve.files import write_atomically
from bayesieve.select.proportion import RULES
from studies.parts import join_tables, read_parts
from studies.records import machine
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

Rows = list[dict[str, Any]]


def _accuracy(scale: Scale) -> Rows:
    return [row for net in scale.nets for d in scale.dims
            for row in fixed_fraction_accuracy(scale, net, d)]  # fmt: skip


def _d(scale: Scale) -> int:
    """The paper's 100 inputs, unless so many are not asked for."""
    return 100 if 100 in scale.dims else scale.dims[0]


EXPERIMENTS: Mapping[str, Callable[[Scale], Any]] = {
    "e1": two_input_importance,
    "e2": lambda scale: [r for net in scale.nets for r in importance_against_effects(scale, net)],
    "e3": _accuracy,
    "e3-cv": lambda scale: [cross_validated_accuracy(scale, s, _d(scale)) for s in scale.shares],
    "e4": lambda scale: [r for s in (0.2, 0.5, 0.9) for r in pruning_curve(scale, s, _d(scale))],
    "fdr": lambda scale: false_discoveries(scale, _d(scale)),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen experiments; write JSON, and figures to --folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default=",".join(EXPERIMENTS), help="comma list of experiments")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="two data sets a cell, short runs")
    parser.add_argument("--full", action="store_true", help="20 (fdr: 100) data sets a cell")
    parser.add_argument("--sets", type=int, help="data sets a cell, in place of 5 (full: 20)")
    parser.add_argument("--dims", help="comma list of numbers of inputs for e3, in place of all")
    parser.add_argument("--nets", help="20-10 or additive for e2 and e3, in place of both")
    parser.add_argument("--shares", help="comma list of π for e3-cv, in place of all")
    parser.add_argument("--join", type=Path, nargs="+", help="make one record of these parts")
    parser.add_argument("--at-once", type=int, help="networks per population; memory grows with it")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path, help="where figures go")
    options = parser.parse_args(arguments)
    if options.join is not None:
        _finish(join_tables(read_parts(options.join, "sbnn_tables")), options)
        return 0
    names = options.only.split(",")
    for name in names:
        check_choice("sbnn_tables", "experiment", name, EXPERIMENTS)
    scale = _scale(options)
    given = arguments if arguments is not None else sys.argv[1:]
    result: dict[str, Any] = {
        "study": "sbnn_tables", "machine": machine(options.device), "scale": asdict(scale),
        "command": " ".join(["python -m studies.sbnn_tables", *given]),
        "experiments": {}, "seconds": {},
    }  # fmt: skip
    for name in names:
        started = time.perf_counter()
        result["experiments"][name] = EXPERIMENTS[name](scale)
        result["seconds"][name] = round(time.perf_counter() - started, 1)
        print(f"{name:<6} {result['seconds'][name]:.0f} s", flush=True)
        _write(result, options.out)
    _finish(result, options)
    return 0


def _write(result: dict[str, Any], path: Path | None) -> None:
    result["findings"] = findings(result["experiments"])
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, result)


def _finish(result: dict[str, Any], options: argparse.Namespace) -> None:
    _write(result, options.out)
    print(page(result))
    if options.folder is not None:
        # Drawing needs matplotlib; the numbers do not.
        from studies.sbnn_tables_figures import draw

        draw(result["experiments"], options.folder)
        write_atomically(options.folder / "sbnn_tables.md", page(result))


def _scale(options: argparse.Namespace) -> Scale:
    base = QUICK if options.quick else Scale() if options.full else Scale(5, fdr_sets=20)
    base = replace(base, device=options.device)
    if options.device == "cuda":
        base = replace(base, at_once=1024)
    if options.sets is not None:
        base = replace(base, n_sets=options.sets, fdr_sets=options.sets)
    if options.shares is not None:
        base = replace(base, shares=tuple(float(share) for share in options.shares.split(",")))
    if options.dims is not None:
        base = replace(base, dims=tuple(int(d) for d in options.dims.split(",")))
    if options.nets is not None:
        check_choice("sbnn_tables", "net", options.nets, base.nets)
        base = replace(base, nets=(options.nets,))
    return base if options.at_once is None else replace(base, at_once=options.at_once)


def page(result: Mapping[str, Any]) -> str:
    """Markdown tables of whatever was computed."""
    found, parts = result["experiments"], ["# Which inputs matter", f"`{result['command']}`"]
    rows: list[tuple[Any, ...]]
    if "e2" in found:
        groups: dict[tuple[Any, ...], list[float]] = {}
        for r in found["e2"]:
            kind = "non-linear" if r["nonlinear"] else "linear"
            groups.setdefault((r["net"], r["d"], kind), []).append(r["correlation"])
        rows = [(*key, f"{statistics.fmean(own):.3f}", f"{min(own):.3f}")
                for key, own in groups.items()]  # fmt: skip
        parts += ["## Correlation of φ with the effects, all inputs enter, α = 1 to 10",
                  _table(("network", "D", "effects", "mean", "lowest"), rows)]  # fmt: skip
    if "e3" in found:
        rows = [(r["net"], r["d"], r["alpha"], f"{r['accuracy']:.3f}", f"{r['oracle']:.3f}")
                for r in found["e3"]]  # fmt: skip
        parts += ["## Selection accuracy, best 20 % kept, π = 0.2",
                  _table(("network", "D", "alpha", "accuracy", "oracle"), rows)]  # fmt: skip
    if "e3-cv" in found:
        heads = ("π", *RULES, "fixed 20 %", "kept (generous)")
        rows = [(r["share"], *(f"{r[k]['accuracy']:.3f}" for k in (*RULES, "fixed")),
                 f"{r['generous']['proportion']:.2f}") for r in found["e3-cv"]]  # fmt: skip
        parts += ["## Selection accuracy, cross-validated proportion", _table(heads, rows)]
        compared = [r for r in found["e3-cv"] if "mse" in r]
        if compared:
            names = list(compared[0]["mse"])
            rows = [(r["share"], *(f"{r['mse'][n]:.3f}" for n in names)) for r in compared]
            parts += ["## Test error / variance of the target", _table(("π", *names), rows)]
    if "fdr" in found:
        own = found["fdr"]
        rows = [(k, f"{v['fdr']:.3f} ± {v['fdr_standard_error']:.3f}",
                 f"{v['power']:.3f} ± {v['power_standard_error']:.3f}", f"{v['kept']:.1f}")
                for k, v in own.items() if isinstance(v, dict)]  # fmt: skip
        parts += [f"## False discoveries at level {own['level']}, {own['n_sets']} data sets",
                  _table(("rule", "realised rate", "power", "kept"), rows)]  # fmt: skip
    if "e4" in found:
        rows = [(r["share"], r["removed"], f"{r['mse']:.3f}") for r in found["e4"]]
        parts += ["## Test error against weights removed",
                  _table(("π", "removed", "error"), rows)]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def findings(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The numbers that answer the paper's figures and tables, by what they answer."""
    own: dict[str, dict[str, float]] = {}
    if "e1" in found:
        pairs = torch.tensor([[r["share"], r["psi_2"]] for r in found["e1"]]).T
        own["figure-1"] = {"correlation": float(torch.corrcoef(pairs)[0, 1])}
    for number, nonlinear in ((2, False), (3, True)):
        chosen = [r["correlation"] for r in found.get("e2", ())
                  if r["nonlinear"] == nonlinear and r["net"] == "20-10"]  # fmt: skip
        if chosen:
            own[f"figure-{number}"] = {"correlation": statistics.fmean(chosen)}
    for net, key in (("20-10", "selection"), ("additive", "selection-additive")):
        chosen = [r["accuracy"] for r in found.get("e3", ()) if r["net"] == net and r["d"] == 100]
        if chosen:
            own[key] = {"accuracy": statistics.fmean(chosen)}
        every = [r["accuracy"] for r in found.get("e3", ()) if r["net"] == net]
        if every:
            own.setdefault(key, {})["lowest"] = min(every)
    if "e3-cv" in found:
        own["validated"] = {"accuracy": min(r["generous"]["accuracy"] for r in found["e3-cv"])}
        ratios = [r["mse"]["refit"] / r["mse"]["full BNN"] for r in found["e3-cv"]
                  if r["share"] == 0.2]  # fmt: skip
        if ratios:
            own["refit"] = {"ratio": ratios[0]}
    if "e4" in found:
        own["droprate"] = {"points": len(found["e4"])}
    for name, rates in found.get("fdr", {}).items():
        if isinstance(rates, dict):
            own[f"fdr-{name}"] = {"fdr": rates["fdr"], "power": rates["power"]}
    return own


def _table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    marks = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (header, marks, *rows))


if __name__ == "__main__":
    sys.exit(main())
