"""The work of `bayesieve export`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.network import materialise
from bayesieve.core.posterior import Posterior, SparseModel, posterior_of
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
from bayesieve.runs.bundles import is_bundle_folder
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.run import load_run


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
    folder = RunFolder(path)
    run = load_run(folder, device="cpu")
    posterior = posterior_of(run.model)
    module = materialise(posterior.network, posterior.mean, posterior.buffers)
    options = {
        "posterior": posterior,
        "sparse": run.model if isinstance(run.model, SparseModel) else None,
        "preprocessing": run.data.preprocessing or None,
        "classes": run.data.classes,
        "feature_names": run.data.feature_names,
        "config": provenance(run, folder),
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
    own: Exported, to: str, out: Path, *, n_samples: int, seed: int, int8: bool, force: bool
) -> dict[str, Any]:
    """Write one form; returns what was written."""
    if n_samples and own.posterior is None:
        raise UsageError(
            "--samples needs a posterior, which this bundle lacks; write it with "
            "`bayesieve compact --posterior`."
        )
    if to == "onnx":
        from bayesieve.deliver.onnx import export_onnx

        export_onnx(
            own.module,
            out,
            own.example,
            posterior=own.posterior if n_samples else None,
            n_samples=n_samples,
            seed=seed,
            classes=own.options.get("classes"),
            preprocessing=own.options.get("preprocessing"),
            likelihood=own.likelihood,
        )
    elif to == "pt2":
        from bayesieve.deliver.pt2 import export_pt2

        export_pt2(own.module, out, own.example)
    elif to == "c":
        from bayesieve.deliver.c import export_c

        export_c(own.module, out, own.example, int8=int8)
    elif own.bundle is not None:
        copy_bundle(own.bundle, out, force=force)
    else:
        save_bundle(own.module, out, example=own.example, **own.options, force=force)
    files = sorted(out.iterdir()) if out.is_dir() else [out]
    size = sum(path.stat().st_size for path in files)
    return {"to": to, "out": str(out), "bytes": size, "masked": own.masked, "samples": n_samples}
