"""The work of `bayesieve verify`."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve.core.network import materialise
from bayesieve.core.posterior import posterior_of
from bayesieve.deliver.bundle import Bundle, check_outputs, example_input, read_bundle
from bayesieve.deliver.bundle.architecture import architecture_source
from bayesieve.errors import UsageError, VerificationError
from bayesieve.runs.bundles import is_bundle_folder
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.run import load_run
from bayesieve.sieve.verify import verify

_TOLERANCE = 1e-4  # of recorded outputs, which another machine may have computed


def verify_bundle(path: Path, against: Path | None) -> dict[str, Any]:
    """Check files and recorded outputs, then compare with another model if one is given."""
    if not is_bundle_folder(path):
        raise UsageError(f"{path} is a run folder; give a bundle, and the run as --against.")
    bundle = read_bundle(path)
    result: dict[str, Any] = {"bundle": str(path), "files": _check_files(bundle)}
    result["recorded_outputs"] = _check_recorded(bundle)
    if bundle.config.get("posterior") is not None:
        result["posterior"] = type(bundle.posterior).__name__
    if against is not None:
        result |= {"against": str(against), **_compare(bundle, against)}
    return {**result, "ok": True}


def _check_files(bundle: Bundle) -> int:
    """Number of files whose content is the recorded one."""
    recorded = bundle.config.get("sha256")
    if not isinstance(recorded, dict):
        raise VerificationError(f"verify: {bundle.path / 'config.json'} records no checksums.")
    for name, expected in recorded.items():
        if name != Path(name).name or not (bundle.path / name).is_file():
            raise VerificationError(f"verify: {bundle.path} lacks the file {name!r}.")
        with (bundle.path / name).open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != expected:
                raise VerificationError(
                    f"verify: {bundle.path / name} was changed after the bundle was written."
                )
    source = bundle.path / "architecture.py"
    if source.is_file() and source.read_bytes() != _source(bundle).encode():
        raise VerificationError(f"verify: {source} does not describe the network of the bundle.")
    return len(recorded) + source.is_file()


def _source(bundle: Bundle) -> str:
    return architecture_source(bundle.config["graph"])


def _check_recorded(bundle: Bundle) -> float | None:
    """Largest difference to the outputs recorded at saving, relative to their scale."""
    recorded = bundle.config.get("check")
    if not isinstance(recorded, list) or not recorded:
        return None
    found = check_outputs(bundle.module, bundle.input_shape, bundle.dtype)
    are_numbers = all(isinstance(value, int | float) for value in recorded)
    if found is None or len(found) != len(recorded) or not are_numbers:
        raise VerificationError(f"verify: {bundle.path} gives other outputs than recorded.")
    scale = max(1.0, *(abs(value) for value in recorded))
    worst = max(abs(a - b) for a, b in zip(found, recorded, strict=True)) / scale
    if worst > _TOLERANCE:
        raise VerificationError(
            f"verify: {bundle.path} gives other outputs than recorded when it was written: they "
            f"differ by {worst:.2g} of their scale."
        )
    return worst


def _compare(bundle: Bundle, against: Path) -> dict[str, Any]:
    reference, x = _reference(bundle, against)
    if tuple(x.shape[1:]) != bundle.input_shape:
        raise VerificationError(
            f"verify: {bundle.path} takes inputs of shape {bundle.input_shape}, {against} "
            f"{tuple(x.shape[1:])}."
        )
    try:
        difference = verify(bundle.module, reference, x[:256])
    except VerificationError as error:
        reason = str(error).partition(" Please report")[0].removeprefix("verify: ")
        raise VerificationError(f"verify: {bundle.path} is not {against}: {reason}") from error
    with torch.no_grad():
        rows = [(bundle.module(part), reference(part)) for part in x.split(1024)]
    own, other = (torch.cat(parts) for parts in zip(*rows, strict=True))
    scale = max(1.0, float(other.abs().max()))
    result = {
        "max_difference": max(difference, float((own - other).abs().max()) / scale),
        "n_inputs": len(x),
    }
    if bundle.classes is not None and own.shape[-1] > 1:
        result["changed_predictions"] = int((own.argmax(-1) != other.argmax(-1)).sum())
    return result


def _reference(bundle: Bundle, against: Path) -> tuple[nn.Module, Tensor]:
    """The other model, and inputs to compare on."""
    if is_bundle_folder(against):
        other = read_bundle(against)
        return other.module, example_input(other.input_shape, other.dtype, 256)
    run = load_run(RunFolder(against), device="cpu")
    posterior = posterior_of(run.model)
    module = materialise(posterior.network, posterior.mean, posterior.buffers)
    return module, run.data.test.x
