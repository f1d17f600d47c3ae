"""`export`: from a bundle or a run to a file that other software runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bayesieve.checks import did_you_mean
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.deliver.bundle import (
    Bundle,
    copy_bundle,
    example_input,
    read_bundle,
    save_bundle,
)
from bayesieve.deliver.bundle.posterior import likelihood_from_json
from bayesieve.errors import UsageError
from bayesieve.runs.bundle import provenance
from bayesieve.runs.folder import check_out, check_out_file, is_bundle_folder
from bayesieve.runs.options import Export
from bayesieve.runs.run import load
from bayesieve.runs.text import warn

KINDS = ("onnx", "pt2", "c", "bundle")


def export(asked: Export) -> dict[str, Any]:
    """Write one form of a model; returns what was written."""
    source, out, to, samples = Path(asked.source), Path(asked.out), asked.to, asked.samples
    if to not in KINDS:
        hint = did_you_mean(to, KINDS)
        raise UsageError(f"--to must be one of {', '.join(KINDS)}; got {to!r}.{hint}")
    if samples < 0:
        raise UsageError(f"--samples must be >= 0, got {samples}.")
    if samples and to != "onnx":
        raise UsageError("--samples is for --to onnx.")
    if asked.int8 and to != "c":
        raise UsageError("--int8 is for --to c.")
    if out.resolve() == source.resolve():
        raise UsageError("--out must differ from what is exported.")
    (check_out if to == "bundle" else check_out_file)(out, force=asked.force)
    exported = read_source(source, masked_ok=asked.masked_ok)
    if samples and exported.posterior is None:
        raise UsageError(
            "--samples needs a posterior, which this bundle lacks; write it with "
            "`bayesieve compact --posterior`."
        )
    export_to(
        exported, to, out, n_samples=samples, seed=asked.seed, int8=asked.int8, force=asked.force
    )
    if exported.masked:
        warn(
            "exported as it is: weights that were removed are zeros in full-size tensors, so the "
            "file is as large and as slow as before pruning. `bayesieve compact` removes them."
        )
    files = sorted(out.iterdir()) if out.is_dir() else [out]
    size = sum(path.stat().st_size for path in files)
    return {
        "to": to, "out": str(out), "bytes": size, "masked": exported.masked, "samples": samples,
    }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Exported:
    """A model ready to be written in any form.

    Args:
        module: the network.
        example: some inputs.
        posterior: for draws; None where there is none.
        masked: whether it comes from a run, so that zeros were not removed.
        options: of `save_bundle`.
        likelihood: what the outputs mean, at a fixed noise level; None where nobody said.
        bundle: where it comes from, unless that is a run.
    """

    module: nn.Module
    example: Tensor
    posterior: Posterior | None
    masked: bool
    options: Mapping[str, Any]
    likelihood: Likelihood | None
    bundle: Bundle | None = None


def read_source(path: Path, *, masked_ok: bool) -> Exported:
    """Read a bundle, or a run if that is allowed."""
    if is_bundle_folder(path):
        return _of_bundle(read_bundle(path))
    if not masked_ok:
        raise UsageError(
            f"{path} is a run, not a bundle: its model is only masked, so a file made of it is as "
            f"large and slow as the dense one. Run `bayesieve compact {path} --out BUNDLE` first, "
            "or add --masked-ok."
        )
    run = load(path, device="cpu")
    posterior = run.posterior
    module = posterior.to_module()
    options = {
        "posterior": posterior,
        "sparse": run.model if isinstance(run.model, SparseModel) else None,
        "preprocessing": run.data.preprocessing or None,
        "classes": run.data.classes,
        "feature_names": run.data.feature_names,
        "config": provenance(run),
    }
    likelihood = posterior.network.likelihood_at(posterior.mean)
    return Exported(module, run.data.test.x[:64], posterior, True, options, likelihood)


def _of_bundle(bundle: Bundle) -> Exported:
    config = bundle.config
    posterior = bundle.posterior if config.get("posterior") is not None else None
    options = {name: config.get(name) for name in ("preprocessing", "classes")}
    example = example_input(bundle.input_shape, bundle.dtype, 8)
    likelihood = likelihood_from_json(config.get("likelihood"), bundle.classes)
    return Exported(bundle.module, example, posterior, False, options, likelihood, bundle)


def export_to(
    exported: Exported, to: str, out: Path, *, n_samples: int = 0, seed: int = 0,
    int8: bool = False, force: bool = False,
) -> None:  # fmt: skip
    """Write one form."""
    if to == "onnx":
        from bayesieve.deliver.onnx import export_onnx

        export_onnx(
            exported.module,
            out,
            exported.example,
            posterior=exported.posterior if n_samples else None,
            n_samples=n_samples,
            seed=seed,
            classes=exported.options.get("classes"),
            preprocessing=exported.options.get("preprocessing"),
            likelihood=exported.likelihood,
        )
    elif to == "pt2":
        from bayesieve.deliver.pt2 import export_pt2

        export_pt2(exported.module, out, exported.example)
    elif to == "c":
        from bayesieve.deliver.c import export_c

        export_c(exported.module, out, exported.example, int8=int8)
    elif exported.bundle is not None:
        copy_bundle(exported.bundle, out, force=force)
    else:
        save_bundle(exported.module, out, example=exported.example, **exported.options, force=force)
