"""`attack`: accuracy, entropy and calibration of a run under attacks and shifts of its images."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from torch import Tensor

from bayesieve.assess.figures.curves import robustness_curves
from bayesieve.assess.predict import FEWEST_DRAWS, draws_of
from bayesieve.core.likelihoods import likelihood_class
from bayesieve.data.images import PixelScale
from bayesieve.errors import UsageError
from bayesieve.runs.arguments import ARGUMENT, LIST, Arg, Count, Json, Place, WholeNumber, command
from bayesieve.runs.config import Floats, convert
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.run import load
from bayesieve.uncertainty.robustness import Attacked, curve, fgsm_curve

_WORDS = {  # panel and label of a curve
    "fgsm": ("largest change of a pixel", "FGSM"),
    "pgd": ("largest change of a pixel", "PGD"),
    "rotation": ("rotation in degrees", "rotated"),
    "noise": ("noise, std in pixels", "noise"),
}
_RESULT, _PICTURE = "attack.json", "figures/attack.png"
_FGSM = "0.1,0.2,0.3,0.4,0.5"  # the strengths of [Deng], figure 2
_SHIFTS = {"rotation": "15,30,45,60", "noise": "0.1,0.2,0.3"}


@command
def attack(
    run: Annotated[Place, ARGUMENT],
    *,
    fgsm: Annotated[str | Sequence[float] | None, LIST] = None,
    pgd: Annotated[str | Sequence[float] | None, LIST] = None,
    pgd_steps: Count = 10,
    shift: Annotated[Sequence[str] | None, Arg(metavar="SHIFT")] = None,
    samples: WholeNumber | None = None,
    examples: Count | None = None,
    seed: int = 0,
    member: int | None = None,
    device: str = "auto",
    out: Place | None = None,
    figures: bool = True,
    trust: bool = False,
) -> Json:
    """Attack a run: accuracy, entropy and calibration against strength on its test images.

    Args:
        run: Run folder of `train` or `prune`.
        fgsm: Fast gradient sign attacks of these strengths, in pixels from 0 to 1
            (0.1,0.2,0.3,0.4,0.5 if nothing is chosen).
        pgd: Projected gradient attacks on the true labels.
        pgd_steps: Steps of `pgd`.
        shift: rotation[:DEGREES,...] or noise[:STD,...]; may be given twice.
        samples: Posterior draws averaged: all that are kept (32 of a variational run); 0 uses the
            mean weights, of several chains the first one's.
        examples: Only the first so many test images.
        seed: Seed of draws and noise.
        member: Which model of a run with `n_models`, from 0; chains go together.
        device: auto, cpu, cuda or cuda:N.
        out: Folder for attack.json and the picture: the run's own.
        figures: Whether to draw pictures.
        trust: Import the factory of a network module:... that a run or file names, if it is
            unchanged; a run's stored graph is used unless given.
    """
    wanted = _wanted({"fgsm": fgsm, "pgd": pgd}, shift)
    folder, home = RunFolder(Path(run)), RunFolder(Path(out or run))
    likelihood = folder.read_config().net.likelihood
    if likelihood is None or likelihood_class(likelihood).task == "regression":
        raise UsageError(f"attack needs class labels; {folder.path} is a regression.")
    home.check_open(_RESULT, _PICTURE)
    opened = load(run, member=member, device=device, trust=trust)
    data = opened.data
    if data.preprocessing.get("kind") != "image" or data.test.x.dim() != 4:
        raise UsageError(
            f"attack needs images, whose strengths are in pixels; {data.name} in {folder.path} is "
            "a table."
        )
    # Chains are at different modes: the mean of their weights is no network that any of them found.
    model = opened.model if member is not None or samples == 0 else opened.pooled()
    n_samples = draws_of(model, FEWEST_DRAWS) if samples is None else samples
    attacked = Attacked(model, n_samples, seed, scale=PixelScale.of(data.preprocessing))
    x, labels = data.test.x[:examples], data.test.y[:examples]
    started = time.perf_counter()

    def stepped(inputs: Tensor, strength: float) -> Tensor:
        return attacked.pgd(inputs, labels, strength, pgd_steps)

    changes = {"pgd": stepped, "rotation": attacked.rotated, "noise": attacked.noisy}
    curves = {}
    for name, strengths in wanted.items():
        with_none = sorted({0.0, *strengths})  # the untouched images come first
        if name == "fgsm":
            curves[name] = fgsm_curve(attacked, x, labels, with_none)
        else:
            curves[name] = curve(attacked, x, labels, with_none, changes[name])
    result = {
        "run": str(folder.path),
        "data": data.name,
        "n_examples": len(x),
        "samples": n_samples,
        "seed": seed,
        "pgd_steps": pgd_steps if "pgd" in curves else None,
        "device": str(opened.model.network.device),
        "seconds": round(time.perf_counter() - started, 3),
        "curves": curves,
    }
    with home.locked():
        home.open_to_add()
        home.write(_RESULT, result)
        if figures:
            panels: dict[str, Json] = {}
            for name, points in curves.items():
                panel, label = _WORDS[name]
                panels.setdefault(panel, {})[label] = points
            robustness_curves(panels, home.place(_PICTURE))
        home.seal()
    return result


def _wanted(
    attacks: dict[str, str | Sequence[float] | None], shift: Sequence[str] | None
) -> dict[str, Floats]:
    """Floats by the name of each attack or shift; the paper's attack if none is named."""
    if not (shift or any(pixels is not None for pixels in attacks.values())):
        attacks["fgsm"] = _FGSM
    wanted: dict[str, Floats] = {}
    for name, pixels in attacks.items():
        if pixels is None:
            continue
        wanted[name] = _strengths(f"`{name}`", pixels)
        most = max(wanted[name])
        if most > 1:  # taken for the 0 to 255 of a file's pixels
            raise UsageError(
                f"`{name}`: pixels run from 0 to 1, so no strength is above 1, got {pixels!r}. "
                f"Write {most:g} of 255 as {most / 255:.4f}."
            )
    for text in shift or ():
        name, _, strengths = text.partition(":")
        if name not in _SHIFTS:
            raise UsageError(
                f"`shift` must be rotation or noise, with strengths after a colon if wanted; "
                f"got {text!r}."
            )
        if name in wanted:
            raise UsageError(f"`shift={name}` is given twice; list its strengths after one colon.")
        wanted[name] = _strengths(f"`shift={name}`", strengths or _SHIFTS[name])
    return wanted


def _strengths(flag: str, text: str | Sequence[float]) -> Floats:
    values = convert(text, Floats, flag)
    if not all(0 <= value < float("inf") for value in values):
        raise UsageError(f"{flag}: strengths must be >= 0, got {text!r}.")
    return values
