"""The table of what each engine reached, in docs/choosing-an-engine.md.

Every number is looked up among the committed records by the name that `bayesieve reproduce list`
gives it; one that has no record is left out with its sentence.
"""

import re
from collections.abc import Mapping

from studies.reproduce.table import Findings, listing

# What somebody wants, what to take, and what that reached: {name:format} is a finding.
WANTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "the fewest weights for an error",
        "`SBNN` that prunes while it trains: `train --zeros 0.98`",
        (
            "LeNet-300-100 on MNIST with 98.5 % zeros: {sbnn-table-7-l300-more:.2f} % test error",
            "LeNet-5-Caffe with 99.5 %: {sbnn-table-7-l5:.2f} %",
            "784-1200-1200-10 with 98 %: {sbnn-table-5-gradual:.2f} %",
        ),
    ),
    (
        "the data to decide the sparsity",
        "`BMR`: `train --engine bmr`",
        (
            "Fashion-MNIST, LeNet-5, the paper's settings: removes "
            "{bmr-figure-2-fashion-mnist-lenet-pruned-paper:.0%} by itself, accuracy "
            "{bmr-figure-1-fashion-mnist-lenet-accuracy-paper:.3f}, ECE "
            "{bmr-figure-1-fashion-mnist-lenet-ece-paper:.3f}",
            "LeNet-300-100 on MNIST, held at 97.6 % zeros: {own-bmr-l300-97.6:.2f} % error",
        ),
    ),
    (
        "to sieve a trained network without training",
        "`laplace_units` and `prune_units_by_evidence`: `bayesieve sieve`",
        (
            "784-300-100-10 on MNIST: {own-laplace-unit-0.5:.2f} % error with 50 % zeros, "
            "{own-laplace-unit-0.9:.2f} % with 90 % (by magnitude "
            "{own-laplace-magnitude-0.9:.2f} %)",
        ),
    ),
    (
        "speed in every library: structured pruning",
        "`SBNN` with `GradualUnits`: `train --keep-units 0.3`",
        (
            "LeNet-5-Caffe on MNIST, 20-50-500 units to 8-16-50: {own-units-error:.2f} % error, "
            "ONNX Runtime {own-units-speed-1:.1f} times faster at batch 1 and "
            "{own-units-speed-64:.1f} at 64, file {own-units-file:.0f} times smaller",
        ),
    ),
    (
        "a regression on a table",
        "`SieveRegressor`, `bayesieve fit-table`: one `SBNN`; several are better",
        (
            "`SieveRegressor` with its defaults, the 20 published splits: RMSE on Concrete "
            "{own-regressor-concrete:.2f}",
            "on Energy {own-regressor-energy:.2f}",
            "on Yacht {own-regressor-yacht:.2f}; more [below](#a-regression-on-a-table)",
        ),
    ),
    (
        "posterior samples, and chains to compare",
        '`SGHMC(adapt="sa")`: `train --engine sghmc --adapt sa --chains 4`',
        (
            "MNIST, conv2-fc2, 4 chains: {aeb-table-2-mnist-sghmc-sa:.2f} % accuracy",
            "RMSE on Concrete {own-aeb-concrete:.2f}",
        ),
    ),
    (
        "few epochs, no learning rate",
        "`TDAMP`: `train --engine tdamp`",
        (
            "784-128-10 on 10,000 MNIST images in 10 epochs, half the units left: accuracy "
            "{tdamp-table-4.1-accuracy:.3f}",
            "digits: {own-digits-tdamp-mlp:.3f}, Adam {own-digits-adam-mlp:.3f}",
            "RMSE on Concrete {own-tdamp-concrete:.2f}",
        ),
    ),
)
_NUMBER = re.compile(r"\{([^:}]+):([^}]+)\}")


def wants_table(findings: Findings) -> str:
    """The table as Markdown.

    Example:
        >>> wants_table({}).splitlines()[3]
        '| the data to decide the sparsity | `BMR`: `train --engine bmr` |  |'
    """
    known = {row["name"]: row["ours"] for row in listing(findings) if row["ours"] is not None}
    lines = ["| you want | take | what it reached |", "| --- | --- | --- |"]
    for want, engine, sentences in WANTS:
        told = [text for line in sentences if (text := _filled(line, known)) is not None]
        lines.append(f"| {want} | {engine} | {'; '.join(told)} |")
    return "\n".join(lines)


def named() -> set[str]:
    """The names of all findings the table asks for."""
    text = " ".join(sentence for _, _, sentences in WANTS for sentence in sentences)
    return {name for name, _ in _NUMBER.findall(text)}


def _filled(sentence: str, known: Mapping[str, float]) -> str | None:
    if any(name not in known for name, _ in _NUMBER.findall(sentence)):
        return None
    return _NUMBER.sub(lambda hit: format(known[hit[1]], hit[2]).replace("%", " %"), sentence)
