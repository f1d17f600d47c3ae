"""The work of `bayesieve attack`."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesieve.assess.figures.robustness import robustness_curves
from bayesieve.assess.robustness import (
    Attacked,
    Point,
    fgsm_curve,
    noise_curve,
    pgd_curve,
    rotation_curve,
)
from bayesieve.core.likelihoods import likelihood_class
from bayesieve.core.posterior import posterior_of
from bayesieve.data.preprocessing import PixelScale
from bayesieve.errors import UsageError
from bayesieve.files import write_atomically
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.results import draws_of
from bayesieve.runs.run import Run, all_chains, load_run

_UNITS = {
    "fgsm": "largest change of a pixel",
    "pgd": "largest change of a pixel",
    "rotation": "rotation in degrees",
    "noise": "noise, std in pixels",
}
_LABELS = {"fgsm": "FGSM", "pgd": "PGD", "rotation": "rotated", "noise": "noise"}


@dataclass(frozen=True)
class Attack:
    """What is done to the images.

    Args:
        strengths: by the name of an attack or shift.
        pgd_steps: of projected gradient descent.
        samples: draws averaged; None takes all that are kept, of all chains of a sampler, 0 the
            mean weights of one.
        n_examples: test images used; None takes all.
        seed: of draws and noise.
    """

    strengths: dict[str, tuple[float, ...]]
    pgd_steps: int
    samples: int | None
    n_examples: int | None
    seed: int


def attack_run(
    folder: RunFolder, attack: Attack, *, member: int | None, device: str, out: Path, figures: bool
) -> tuple[dict[str, Any], Path | None]:
    """Measure every curve; write attack.json and the picture; the numbers and the picture."""
    config = folder.read_config()
    name = config.net.likelihood
    if name is None or likelihood_class(name).task == "regression":
        raise UsageError(f"attack needs class labels; {folder.path} is a regression.")
    run = load_run(folder, member=member, device=device)
    scale = _scale_of(run, folder.path)
    # Chains are at different modes: the mean of their weights is no network that any of them found.
    one = member is not None or attack.samples == 0
    model = run.model if one else all_chains(folder, run)
    n_samples = draws_of(model) if attack.samples is None else attack.samples
    attacked = Attacked(model, n_samples, attack.seed, scale=scale)
    x, labels = (part[: attack.n_examples] for part in (run.data.test.x, run.data.test.y))
    started = time.perf_counter()
    curves = {
        name: [asdict(point) for point in _curve(name, attacked, x, labels, strengths, attack)]
        for name, strengths in attack.strengths.items()
    }
    result = {
        "run": str(folder.path),
        "data": run.data.name,
        "n_examples": len(x),
        "samples": n_samples,
        "seed": attack.seed,
        "pgd_steps": attack.pgd_steps if "pgd" in curves else None,
        "device": str(posterior_of(run.model).network.device),
        "seconds": round(time.perf_counter() - started, 3),
        "curves": curves,
    }
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "attack.json", (json.dumps(result, indent=2) + "\n"))
    return result, _picture(curves, out) if figures else None


def _curve(
    name: str, attacked: Attacked, x: Tensor, labels: Tensor, strengths: tuple[float, ...],
    attack: Attack,
) -> list[Point]:  # fmt: skip
    own = sorted({0.0, *strengths})  # the untouched images come first
    if name == "pgd":
        return pgd_curve(attacked, x, labels, own, attack.pgd_steps)
    measure = {"fgsm": fgsm_curve, "rotation": rotation_curve, "noise": noise_curve}[name]
    return measure(attacked, x, labels, own)


def _scale_of(run: Run, path: Path) -> PixelScale:
    """How the run's inputs come from pixels; a complaint where there are none."""
    data = run.data
    if data.task != "classification":
        raise UsageError(f"attack needs class labels; {path} is a regression.")
    if data.preprocessing.get("kind") != "image" or data.test.x.dim() != 4:
        raise UsageError(
            f"attack needs images, whose strengths are in pixels; {data.name} in {path} is a table."
        )
    return PixelScale.of(data.preprocessing)


def _picture(curves: dict[str, list[dict[str, Any]]], out: Path) -> Path:
    panels: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name, points in curves.items():
        panels.setdefault(_UNITS[name], {})[_LABELS[name]] = points
    (out / "figures").mkdir(exist_ok=True)
    return robustness_curves(panels, out / "figures" / "attack.png")
