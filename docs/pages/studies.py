"""Tables of the studies: MNIST, one-shot, VGG, model reduction, familiarity."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from bayesieve.engines.tdamp.groups import judged_share
from bayesieve.text import markdown_table
from studies.bmr_images import published as published_reduction
from studies.pretrained_resnet import TARGETS
from studies.record import Row
from studies.sbnn_droprate import RANKED, metric, published
from studies.sbnn_vgg import PUBLISHED
from studies.tables import ranks
from studies.tdamp_support import SHARES
from studies.tdamp_support import tasks as tasks_of
from studies.uci import ONE_SHOT, SETS

EMPTY = "_To be filled by `python docs/make_results_table.py` from `results/*.json`._"
NETS = {"l300": "LeNet-300-100", "l5": "LeNet-5-Caffe", "m1200": "784-1200-1200-10"}
_NAMES = {
    "m400": "MNIST, 2 x 400", "m800": "MNIST, 2 x 800", "m1200": "MNIST, 2 x 1200",
    "m1200-bbb": "MNIST, 2 x 1200", "cifar10": "CIFAR-10, 2 x 1200",
    "cifar10-bbb": "CIFAR-10, 2 x 1200", "l300-set1": "LeNet-300-100, prior set 1",
    "l300-set2": "LeNet-300-100, prior set 2", "l5-set1": "LeNet-5-Caffe, prior set 1",
    "l5-set2": "LeNet-5-Caffe, prior set 2", "m1200-close": "MNIST, 2 x 1200, our prior",
    "cifar10-close": "CIFAR-10, 2 x 1200, our prior",
    "cifar10-moved": "CIFAR-10, 2 x 1200, our prior, images moved and mirrored",
    "l5-close": "LeNet-5-Caffe, our prior",
    "l5-set1-spike": "LeNet-5-Caffe, prior set 1, start in the spike",
    "l5-set2-spike": "LeNet-5-Caffe, prior set 2, start in the spike",
}  # fmt: skip


def rows_of(results: list[dict[str, Any]], study: str, scored_on: str) -> dict[str, dict[str, Any]]:
    """Rows of all records of a study scored on "test" or "held-out", by name."""
    rows: dict[str, dict[str, Any]] = {}
    for record in results:
        if record.get("study") == study and record.get("scored_on") == scored_on:
            for row in record["rows"]:
                if row["name"] in rows and scored_on == "test":
                    raise SystemExit(f"results: two files hold {row['name']}; keep one of them.")
                rows[row["name"]] = {"machine": record["machine"], "data": record["data"], **row}
    return rows


def mnist_table(results: list[dict[str, Any]], held_out: list[dict[str, Any]]) -> str:
    """One row per setting: network, zeros, errors, and the command that makes it again."""
    chosen_by = rows_of(held_out, "sbnn_mnist", "held-out")
    rows = sorted(
        rows_of(results, "sbnn_mnist", "test").values(),
        key=lambda row: (list(NETS).index(row["setting"]["net"]), row["name"]),
    )
    if not rows:
        return EMPTY
    machines = sorted({_machine(row) for row in rows})
    lines = [
        "| network | parameters left | zeros | test error: mean (least to most) | mean of 20 draws "
        "| held-out error | remarks | setting |",
        "|---|---:|---:|---:|---:|---:|---|---|",
        *(_mnist_row(row, chosen_by.get(row["name"])) for row in rows),
    ]
    seeds = max(len(row["each"]) for row in rows)
    command = f"python -m studies.sbnn_mnist --seeds {seeds} --settings SETTING"
    note = f"Each row: `{command}`, measured on {'; '.join(machines)}."
    return "\n".join([*lines, "", note])


def _machine(row: dict[str, Any]) -> str:
    return f"{row['machine']['device']}, torch {row['machine']['torch']}"


def _mnist_row(row: dict[str, Any], held_out: dict[str, Any] | None) -> str:
    first, numbers = row["each"][0], row["metrics"]
    errors = [one["error"] for one in row["each"]]
    total = round(first["weights"] / (1 - first["zeros"]))
    cells = (
        NETS[row["setting"]["net"]],
        f"{first['weights']:,} of {total:,}",
        f"{100 * min(one['zeros'] for one in row['each']):.2f} %",
        f"{100 * numbers['error']:.2f} % ({100 * min(errors):.2f} to {100 * max(errors):.2f})",
        f"{100 * numbers['mc_error']:.2f} %",
        "" if held_out is None else f"{100 * held_out['metrics']['error']:.2f} %",
        _remarks(row),
        f"`{row['name']}`",
    )
    return f"| {' | '.join(cells)} |"


def _remarks(row: dict[str, Any]) -> str:
    setting = row["setting"]
    words = [f"{len(row['each'])} seeds"]
    if setting["score"] != "snr":
        words.append(f"{setting['score']} score")
    if setting["soft"]:
        words.append("soft mask")
    if setting["teachers"]:
        words.append("**self-distillation**" + (", out of fold" if setting.get("folds") else ""))
    return ", ".join(words)


def seconds_table(results: list[dict[str, Any]]) -> str:
    """Seconds of one training run and of a population, where a study was timed."""
    lines = []
    for record in results:
        timing = record["notes"].get("timing") if record.get("study") == "sbnn_mnist" else None
        if timing:
            cells = (
                _machine(record),
                str(timing["epochs"]),
                f"{timing['first_seconds']:.1f}",
                f"{timing['one_seconds']:.1f}",
                f"{timing['many_seconds']:.1f} ({timing['population']} models)",
                f"{timing['ratio']:.2f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    if not lines:
        return EMPTY
    head = "| machine | epochs | first run (s) | one model (s) | population (s) | ratio |"
    return "\n".join([head, "|---|---:|---:|---:|---:|---:|", *lines])


def reduction_table(results: list[dict[str, Any]]) -> str:
    """Accuracy / calibration error / likelihood of each row of the model-reduction study."""
    rows = rows_of(results, "bmr_images", "test")
    if not rows:
        return EMPTY
    lines = [
        "| data, network | method, preset | ACC / ECE / NLL | the paper's | pruned | the paper's "
        "| zeros | epochs, seeds | s |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
        *(_reduction_row(rows[name]) for name in sorted(rows)),
    ]
    machines = sorted({_machine(row) for row in rows.values()})
    return "\n".join([*lines, "", f"Measured on {'; '.join(machines)}."])


def _reduction_row(row: dict[str, Any]) -> str:
    numbers, setting = row["metrics"], row["setting"]
    theirs = published_reduction(setting["data"], setting["net"], setting["method"])
    augmented = "" if setting.get("augment", "None") == "None" else ", augmented"
    cells = (
        f"{row['data']}, {setting['net']}",
        f"{setting['method']}, {setting['preset']}{augmented}",
        _scores(numbers),
        "/".join(theirs[key] for key in ("accuracy", "ece", "nll")),
        f"{100 * numbers['pruned']:.1f} %" if setting["method"] == "bmr" else "",
        theirs.get("pruned", ""),
        f"{100 * numbers['zeros']:.1f} %",
        f"{setting['epochs']}, {len(row['each'])}",
        f"{row['seconds']:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def _scores(numbers: dict[str, float]) -> str:
    return "/".join(f"{numbers[key]:.3f}".removeprefix("0") for key in ("accuracy", "ece", "nll"))


def trials_table(held_out: list[dict[str, Any]]) -> str:
    """Presets of the model-reduction study as scored on held-out training images."""
    rows = [{"data": record["data"], **row} for record in held_out
            if record.get("study") == "bmr_images" for row in record["rows"]]  # fmt: skip
    if not rows:
        return EMPTY
    lines = [
        "| data, network | preset | ACC / ECE / NLL | zeros | epochs, seeds |",
        "|---|---|---:|---:|---:|",
    ]
    for row in sorted(rows, key=lambda row: str(row["name"])):
        setting = row["setting"]
        where = f"{row['data']}, {setting['net']}"
        zeros = f"{100 * row['metrics']['zeros']:.1f} %"
        size = f"{setting['epochs']}, {len(row['each'])}"
        lines.append(
            f"| {where} | {setting['preset']} | {_scores(row['metrics'])} | {zeros} | {size} |"
        )
    return "\n".join(lines)


_SHOWN = (50, 75, 90, 95, 98, 99, 99.5)


def one_shot_table(rows: Iterable[Row]) -> str:
    """Markdown: test error in % at each droprate, ours by every ranking, then the paper's.

    Args:
        rows: of this study, in any order; none give no table.
    """
    by_name = {row["name"]: row for row in rows}
    if not by_name:
        return ""
    lines = [_line(["network", "method", "all", *(f"{rate:g} %" for rate in _SHOWN)]),
             _line(["---", "---", *["---:"] * (1 + len(_SHOWN))])]  # fmt: skip
    for name, title in _NAMES.items():
        if name not in by_name:
            continue
        metrics = by_name[name]["metrics"]
        for score in ("inclusion", "snr"):
            if metric(score, 50) in metrics:
                method = f"sBNN, {RANKED[score]}"
                errors = (metrics["error"], *(metrics[metric(score, rate)] for rate in _SHOWN))
                cells = [f"{100 * error:.2f}" for error in errors]
                method = "Bayes by backprop" if name.endswith("-bbb") else method
                lines.append(_line([title, method, *cells]))
        printed = published(name)
        if printed:
            cells = [f"{printed[rate]:.2f}" if rate in printed else "" for rate in (0, *_SHOWN)]
            lines.append(_line([title, "*the paper*", *cells]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_CUT_ROWS = {
    "sbnn-paper": "its prior, usual start", "sbnn-paper-spike": "its prior, start in the spike",
    "sbnn-one-shot": "our prior", "sbnn-by-rate": "our prior, weight by share",
}  # fmt: skip


def uci_cuts_table(results: list[dict[str, Any]]) -> str:
    """Markdown: RMSE of UCI sets with shares of the weights removed at once, and the paper's."""
    rows = rows_of(results, "uci", "test")
    lines = [_line(["set", "network", *(f"{rate} %" for rate in ONE_SHOT)]),
             _line(["---", "---", *["---:"] * len(ONE_SHOT)])]  # fmt: skip
    for i, name in enumerate(SETS):
        lines.append(_line([name, "*the paper*", *(f"{of[i]:.2f}" for of in ONE_SHOT.values())]))
        for key, words in _CUT_ROWS.items():
            if f"{name}/{key}" in rows:
                errors = rows[f"{name}/{key}"]["metrics"]
                cells = [f"{errors[f'cut-{rate}/rmse']:.3g}" for rate in ONE_SHOT]
                lines.append(_line([name, words, *cells]))
    return "\n".join(lines)


def vgg_table(rows: Sequence[Row]) -> str:
    """Markdown: error, likelihood and time of every network beside the paper's error.

    Args:
        rows: of this study; none give no table.
    """
    head = ("zeros", "parameters left", "epochs", "error", "BatchNorm renewed", "NLL", "ECE",
            "the paper's error", "seconds")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---:'] * len(head))} |"]
    for row in rows:
        numbers, paper = row["metrics"], PUBLISHED.get(row["setting"]["zeros"])
        cells = (
            f"{100 * numbers['zeros']:.1f} %", f"{numbers['weights']:,.0f}",
            str(row["setting"]["epochs"]), f"{numbers['error']:.2f} %",
            f"{numbers['renewed_error']:.2f} %", f"{numbers['nll']:.3f}", f"{numbers['ece']:.3f}",
            "" if paper is None else f"{paper:g} %", f"{row['seconds']:.0f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if rows else ""


def characters_table(held_out: list[dict[str, Any]]) -> str:
    """Every trial of the character model: settings, nats per character and calibration."""
    rows = [row for record in held_out if record.get("study") == "char_gpt"
            for row in record["rows"]]  # fmt: skip
    head = ("row", "dropout", "KL", "learning rate", "starting std", "nats, mean weights",
            "nats, 20 draws", "ECE", "weights left")  # fmt: skip
    lines = []
    for row in sorted(rows, key=lambda row: (row["name"], row["metrics"]["nll"])):
        setting, numbers = row["setting"], row["metrics"]
        drawn = numbers.get("mc_nll")
        of_posterior = ("", "", "") if drawn is None else (
            f"{setting['kl']:g}", f"{setting['init_std']:g}", f"{drawn:.3f}")  # fmt: skip
        lines.append((
            f"`{row['name']}`", f"{setting['dropout']:g}", of_posterior[0], f"{setting['lr']:g}",
            of_posterior[1], f"{numbers['nll']:.3f}", of_posterior[2], f"{numbers['ece']:.3f}",
            f"{numbers['weights']:,.0f}",
        ))  # fmt: skip
    return markdown_table(head, lines, left=1)


_WAYS = {
    "map": "AdamW, dropout", "sbnn": "`SBNN`", "bmr": "`BMR`", "magnitude": "AdamW, smallest go",
    "post-hoc": "AdamW, cut afterwards by `laplace`", "units": "`SBNN`, whole heads and units go",
}  # fmt: skip
_CHARACTER_AIMS = {"sbnn/0": 1.43, "sbnn/90": 1.44, "sbnn/95": 1.455, "sbnn/98": 1.52}


def characters_tested(results: list[dict[str, Any]]) -> str:
    """Print nats per character of the test text, mean ± standard error over seeds, and the aims."""
    rows = rows_of(results, "char_gpt", "test")
    head = ("method", "zeros", "nats, mean weights", "nats, 20 draws", "ECE", "ECE, 20 draws",
            "weights left", "aim")  # fmt: skip
    lines = []
    for name, row in rows.items():
        numbers, drawn = row["metrics"], row["metrics"].get("mc_nll")
        lines.append((
            _WAYS[row["setting"]["method"]], f"{100 * numbers['zeros']:.0f} %",
            f"{numbers['nll']:.3f} ± {numbers['nll_standard_error']:.3f}",
            "" if drawn is None else f"{drawn:.3f}", f"{numbers['ece']:.3f}",
            "" if drawn is None else f"{numbers['mc_ece']:.3f}", f"{numbers['weights']:,.0f}",
            "" if name not in _CHARACTER_AIMS else f"{_CHARACTER_AIMS[name]:g}",
        ))  # fmt: skip
    return markdown_table(head, lines, left=1) if rows else EMPTY


def pretrained_table(results: list[dict[str, Any]]) -> str:
    """Accuracy, likelihood, calibration and multiply-adds left of networks that others trained."""
    rows = rows_of(results, "pretrained_resnet", "test").values()
    head = ("network", "sieved", "zeros", "accuracy", "NLL", "ECE", "accuracy, NLL, ECE of 8 draws",
            "multiply-adds of live units", "aim")  # fmt: skip
    lines = [_line(head), "| --- | --- |" + " ---: |" * (len(head) - 2)]
    ways = {"tuned": "{epochs} passes", "structured": "{epochs} passes, whole maps",
            "reduced": "{epochs} passes of BMR", "sampled": "{epochs} passes of SGHMC",
            "once": "once, by {way}", "dense": "as published"}  # fmt: skip
    for row in rows:
        setting, numbers = row["setting"], row["metrics"]
        way = ways[setting["part"]].format(**setting)
        if setting["part"] == "sampled" and setting["depth"] == 56:
            way += ", whole maps, averaged"
        if setting.get("distill"):
            way += ", distilled"
        if setting.get("noise"):
            way += f", noise on {setting['noise']}"
        drawn = ""
        if "draws_accuracy" in numbers:
            drawn = (f"{numbers['draws_accuracy']:.2f} %, {numbers['draws_nll']:.3f}, "
                     f"{numbers['draws_ece']:.3f}")  # fmt: skip
        macs, aim = numbers.get("macs"), TARGETS.get(row["name"])
        lines.append(_line([
            f"ResNet-{setting['depth']}", way, f"{100 * numbers['zeros']:.1f} %",
            f"{numbers['accuracy']:.2f} %", f"{numbers['nll']:.3f}", f"{numbers['ece']:.3f}", drawn,
            "" if macs is None else f"{100 * macs:.0f} %", "" if aim is None else f"{aim:.1f} %",
        ]))  # fmt: skip
    return "\n".join(lines) if rows else EMPTY


def support_tables(results: list[dict[str, Any]]) -> str:
    """Units that message passing keeps by itself: by share of the data, and with few outputs."""
    rows = rows_of(results, "tdamp_support", "test")
    rows |= rows_of(results, "tdamp_support", "held-out")
    if not rows:
        return EMPTY

    def units(name: str) -> str:
        return ", ".join(f"{one['units']:.0f}" for one in rows[name]["each"])

    tasks = [(n, outputs) for n in (2000, 6000) for outputs in (20, 10)]
    shown = [_line(("$\\tau$", *(f"{n:,} examples, {outputs} outputs" for n, outputs in tasks),
                    "MNIST: units, accuracy, NLL")),
             "| --- |" + " --- |" * (len(tasks) + 1)]  # fmt: skip
    for share in SHARES:
        numbers = rows[f"mnist/{share:g}"]["metrics"]
        digits = f"{numbers['units']:.0f}, {100 * numbers['accuracy']:.1f} %, {numbers['nll']:.3f}"
        cells = [units(f"{outputs}/{n}/{share:g}") for n, outputs in tasks]
        shown.append(_line((f"{share:g}", *cells, digits)))
    few = [_line(("outputs", "examples", "$\\tau$", "units kept of 20 needed", "error")),
           "| --- | --- | --- | --- | --- |"]  # fmt: skip
    for task in (task for task in tasks_of(quick=False) if task.outputs < 10):
        read_at = judged_share(task.judged_at, task.n, torch.tensor(float(task.outputs)))
        cut = f"forced, `keep={task.keep:g}`" if task.keep else f"{read_at:.2g}"
        errors = ", ".join(f"{one['error']:.2f}" for one in rows[task.name]["each"])
        few.append(_line((str(task.outputs), f"{task.n:,}", cut, units(task.name), errors)))
    return "\n".join([*shown, "", *few])


def recipes_table(results: list[dict[str, Any]]) -> str:
    """ECE and error of every engine's recipe on the test digits, dense and sieved."""
    rows = rows_of(results, "recipes", "test")
    lines = [
        _line(("engine", "ECE", "error", "NLL", "ECE, sieved", "error, sieved", "NLL, sieved"))
    ]
    lines.append("| --- |" + " ---: |" * 6)
    for engine in dict.fromkeys(name.split()[0] for name in rows):
        cells = [f"`{engine}`"]
        for kind in ("dense", "sieved"):
            numbers = rows[f"{engine} {kind}"]["metrics"]
            cells += [f"{numbers['ece']:.3f}", f"{100 * numbers['error']:.1f} %"]
            cells.append(f"{numbers['nll']:.3f}")
        lines.append(_line(cells))
    return "\n".join(lines) if rows else EMPTY


def engines_table(results: list[dict[str, Any]]) -> str:
    """RMSE and NLL of `SieveRegressor` with its engines on every set of `studies.tables`."""
    rows = rows_of(results, "tables", "test")
    methods = ("sieve", "sieve-5", "chains", "deep-ensemble")
    lines = [_line(("set", "one SBNN", "five SBNN", "two chains of SGHMC", "five MAP")),
             "| --- |" + " ---: |" * len(methods)]  # fmt: skip
    for name in dict.fromkeys(row["data"] for row in rows.values()):
        scores = [rows[at]["metrics"] if (at := f"{name} {one}") in rows else None
                  for one in methods]  # fmt: skip
        lines.append(_line([name, *("" if one is None else f"{one['rmse']:.3g} / {one['nll']:.2f}"
                                    for one in scores)]))  # fmt: skip
    return "\n".join(lines) if rows else EMPTY


def tables_table(results: list[dict[str, Any]]) -> str:
    """Scores of every method of `studies.tables` on every set."""
    rows = rows_of(results, "tables", "test")
    head = ("set", "method", "splits", "RMSE", "NLL", "CRPS", "90 % intervals cover", "seconds")
    lines = [_line(head), "| --- | --- |" + " ---: |" * 6]
    for row in rows.values():
        numbers = row["metrics"]
        scores = [f"{numbers[name]:.3g}" for name in ("rmse", "nll", "crps")]
        cells = [*scores, f"{numbers['coverage_90']:.3f}", f"{numbers['seconds']:.1f}"]
        lines.append(_line([row["data"], row["setting"]["method"], str(len(row["each"])), *cells]))
    return "\n".join(lines) if rows else EMPTY


def tables_ranks(results: list[dict[str, Any]]) -> str:
    """Mean ranks of the methods of `studies.tables`."""
    records = [one for one in results if one.get("study") == "tables"]
    if not records:
        return EMPTY
    head = ("method", "sets", "RMSE", "NLL", "CRPS", "mean coverage", "least coverage")
    lines = [_line(head), "| --- |" + " ---: |" * 6]
    for method, means in ranks(records[0]["rows"]).items():
        places = [f"{means[name]:.2f}" for name in ("rmse", "nll", "crps") if name in means]
        shares = [f"{means[name]:.3f}" for name in ("coverage_90", "least") if name in means]
        lines.append(_line([method, f"{means['sets']:.0f}", *places, *shares]))
    return "\n".join(lines)


def uci_estimators_table(results: list[dict[str, Any]]) -> str:
    """`SieveRegressor` itself on the UCI sets, beside the best network row on the same splits."""
    rows = rows_of(results, "uci", "test")
    names = ("sbnn", "sbnn-het", "sbnn-dropout", "flat-vi", "deep-ensemble", "bnn", "dropout")
    lines = []
    for name in SETS:
        ours = rows.get(f"{name}/sieve-5")
        if ours is None:
            continue
        cells = [name, str(len(ours["seeds"]))]
        others = [rows[f"{name}/{row}"] for row in names if f"{name}/{row}" in rows]
        for score, best in (("rmse", min), ("log_lik", max)):
            mean, error = ours["metrics"][score], ours["metrics"][f"{score}_standard_error"]
            found = best(_mean_over(row, score, ours["seeds"]) for row in others)
            single = rows.get(f"{name}/sieve")
            alone = "" if single is None else f"{single['metrics'][score]:.3g}"
            cells += [f"{mean:.4g} ± {error:.2g}", f"{found:.4g}", alone]
        seconds = ours["metrics"]["processor_seconds"] / len(ours["seeds"])
        lines.append([*cells, f"{ours['metrics']['coverage_90']:.3f}", f"{seconds:.0f}"])
    head = ("set", "splits", "RMSE, five", "best row", "one network", "log-likelihood, five",
            "best row", "one network", "90 % cover", "seconds a fit")  # fmt: skip
    return markdown_table(head, lines) if lines else EMPTY


def _mean_over(row: dict[str, Any], score: str, seeds: Sequence[int]) -> float:
    """The mean of a row over some of its splits."""
    pairs = zip(row["seeds"], row["each"], strict=True)
    values = [each[score] for seed, each in pairs if seed in seeds]
    return sum(values) / len(values)


def wide_table(results: list[dict[str, Any]]) -> str:
    """Realised false discoveries and power of every way of `studies.wide`."""
    rows = rows_of(results, "wide", "test")
    ways = ("ours", "knockoffs-lasso", "knockoffs-boosting", "lasso", "boosting")
    lines = [_line(("rows", "columns", "tables", *ways)), "|" + " ---: |" * (3 + len(ways))]
    for row in rows.values():
        setting, numbers = row["setting"], row["metrics"]
        cells = [f"{numbers[f'{way} fdr']:.2f} / {numbers[f'{way} power']:.2f}" for way in ways]
        sizes = (f"{setting['n']:,}", f"{setting['p']:,}", str(len(row["each"])))
        lines.append(_line([*sizes, *cells]))
    return "\n".join(lines) if rows else EMPTY


def familiarity_table(results: list[dict[str, Any]]) -> str:
    """Print the AUROC of every way to detect OOD inputs, and the effect of abstaining at 95 %."""
    rows = rows_of(results, "familiarity", "test")
    if not rows:
        return EMPTY
    ways = list(dict.fromkeys(name.rpartition(", ")[2] for name in rows))
    lines = [f"| trained on | OOD inputs | {' | '.join(ways)} | abstained |"]
    lines.append(f"| --- | --- |{' ---: |' * (len(ways) + 1)}")
    notes = []
    for known in dict.fromkeys(name.rpartition(", ")[0] for name in rows):
        scored = rows[f"{known}, familiarity"]["metrics"]
        for unknown in rows[f"{known}, {ways[0]}"]["metrics"]:
            cells = [f"{rows[f'{known}, {way}']['metrics'][unknown]:.3f}" for way in ways]
            share = f"{100 * scored[f'abstained_{unknown}']:.1f} %"
            lines.append(f"| {known} | {unknown} | {' | '.join(cells)} | {share} |")
        notes.append(
            f"{known}: {100 * scored['abstained_known']:.1f} % of the test examples are marked, "
            f"the error is {100 * scored['error']:.2f} % on all and "
            f"{100 * scored['error_answered']:.2f} % on the answered ones"
        )
    return "\n".join([*lines, "", f"*abstained*: at .95. {'; '.join(notes)}."])


def selection_table(record: dict[str, Any]) -> str:
    """Realised rate and power by design and way, from the record of `studies.selection`."""
    ways = ("ours", "least squares", "knockoffs", "lasso")
    rows, pieces = _designs(record), []
    for level in record["settings"]["levels"]:
        lines = [
            (row["name"], *(_rate(row["metrics"], way, level) for way in ways)) for row in rows
        ]
        pieces.append(f"At level {level:g}, false-discovery rate / power:")
        pieces.append(
            markdown_table(("design", "ours", *ways[1:3], "lasso, told the truth"), lines)
        )
    seconds = [row["metrics"]["seconds"] for row in rows]
    sets = record["settings"]["sets"]
    note = (
        f"{sets} data sets per design; one standard error of our rates is at most "
        f"{_largest_error(rows, 'fdr'):.3f}, of our power "
        f"{_largest_error(rows, 'power'):.3f}. Ours takes {min(seconds):.1f} to "
        f"{max(seconds):.1f} s of one core per data set. `{record['command']}`, on "
        f"{_machine(record)}."
    )
    return "\n\n".join([*pieces, note])


def selection_calibration(record: dict[str, Any]) -> str:
    """How many columns of a given probability are true, over all designs."""
    ends = record["settings"]["bins"]
    bins = [
        [sum(row["detail"]["bins"][i][j] for row in _designs(record)) for j in range(3)]
        for i in range(len(ends) - 1)
    ]
    lines = [
        (f"{ends[i]:g} to {ends[i + 1]:g}", f"{n:,.0f}", f"{total / n:.3f}", f"{true / n:.3f}")
        for i, (n, true, total) in enumerate(bins)
        if n
    ]
    return markdown_table(("probability", "columns", "mean probability", "share true"), lines)


def selection_weights(record: dict[str, Any]) -> str:
    """How far the inclusion of weights is from enumeration, for one start and for their mean."""
    metrics = next(row["metrics"] for row in record["rows"] if row["name"] == "weights")
    lines = [
        (way, *(f"{metrics[f'{way}, {what}']:.3f}" for what in ("mean", "largest")))
        for way in ("one start", "mean of starts")
    ]
    header = ("inclusion from", "mean error over the weights", "largest error")
    return markdown_table(header, lines)


def _designs(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in record["rows"] if row["name"] != "weights"]


def _rate(metrics: dict[str, float], way: str, level: float) -> str:
    fdr = metrics.get(f"{way} fdr {level}")
    return "" if fdr is None else f"{fdr:.3f} / {metrics[f'{way} power {level}']:.2f}"


def _largest_error(rows: list[dict[str, Any]], what: str) -> float:
    return max(
        value
        for row in rows
        for name, value in row["metrics"].items()
        if name.startswith(f"ours {what}") and name.endswith("_standard_error")
    )
