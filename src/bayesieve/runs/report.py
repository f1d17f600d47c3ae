"""report.md: a page a newcomer can read, with the numbers, the pictures and how it was made."""

from collections.abc import Mapping, Sequence
from typing import Any

from bayesieve.data import DataSet
from bayesieve.runs.config import RunConfig
from bayesieve.runs.pictures import Picture
from bayesieve.runs.results import quality_header, quality_row
from bayesieve.runs.text import markdown_table

_WORDS = {
    "classification": (
        "**error**: share of test examples classified wrongly. **NLL**: negative log-likelihood, "
        "nats per example; lower is better and punishes confident mistakes. **ECE**: expected "
        "calibration error, the gap between confidence and accuracy. "
    ),
    "regression": (
        "**RMSE**: root mean squared error in the unit of the target. **log-lik**: log density of "
        "the test targets, nats per example; higher is better. **90 % coverage**: share of targets "
        "inside the 90 % interval. "
    ),
}
_SIZE = (
    "**weights kept**: parameters that are not 0, biases counted. **bytes**: kept weights and "
    "where they sit."
)


def write_report(
    title: str,
    data: DataSet,
    config: RunConfig,
    rows: Mapping[str, Mapping[str, Any]],
    pictures: Sequence[Picture],
    remarks: Sequence[str] = (),
    origin: str | None = None,
) -> str:
    """The text of report.md.

    Args:
        title: headline.
        data: what it was tested on.
        config: resolved settings.
        rows: results by label.
        pictures: what to embed.
        remarks: further paragraphs.
        origin: where the weights come from; the engine and length of `config` unless given.
    """
    table = markdown_table(
        quality_header(data.task), [quality_row(name, row) for name, row in rows.items()]
    )
    words = _WORDS[data.task] + _SIZE
    parts = [f"# {title}", _summary(data, config, origin), table, words, *remarks]
    parts += [f"![{p.caption}]({p.file})\n\n{p.caption}" for p in pictures]
    parts.append("Every setting is in `config.json`; evaluate again with `bayesieve evaluate`.")
    return "\n\n".join(parts) + "\n"


def _summary(data: DataSet, config: RunConfig, origin: str | None) -> str:
    training = config.training
    length = f"{training.epochs} epochs" if training.steps is None else f"{training.steps} steps"
    made = origin or f"engine {config.engine.name}, {length}, seed {training.seed}"
    text = (
        f"{data.name}: {len(data.train):,} training and {len(data.test):,} test examples. Network "
        f"{config.net.name}, {made}."
    )
    if config.pruning.zeros is not None:
        text += (
            f" Pruned while training to {100 * config.pruning.zeros:g} % zeros by "
            f"{config.pruning.score}."
        )
    if training.distill:
        text += f" Self-distillation from {training.distill} dense teachers (an extra)."
    return text
