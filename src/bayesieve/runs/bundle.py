"""`compact`, `verify` and `export`: from a run to a bundle, its checks, and its other forms."""

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import nn

from bayesieve.assess.evaluate import evaluate
from bayesieve.assess.predict import ClassPrediction, as_point
from bayesieve.core.posterior import SparseModel
from bayesieve.deliver.bundle import (
    Bundle,
    check_outputs,
    copy_bundle,
    example_input,
    read_bundle,
    save_bundle,
    stored_bytes,
)
from bayesieve.deliver.bundle.posterior import likelihood_from_json
from bayesieve.deliver.bundle.writing import architecture_source
from bayesieve.errors import UsageError, VerificationError
from bayesieve.files import same_place, sha256
from bayesieve.runs.arguments import ARGUMENT, Arg, Json, Place, WholeNumber, command
from bayesieve.runs.config import to_dict
from bayesieve.runs.folder import (
    RunFolder,
    check_out,
    check_out_file,
    is_bundle_folder,
    model_files,
    versions,
)
from bayesieve.runs.run import Run, load, numbers, read_folder
from bayesieve.runs.text import note, warn
from bayesieve.sieve.compact import compact as compact_model
from bayesieve.sieve.verify import verify as verify_outputs

_TOLERANCE = 1e-4  # of recorded outputs, which another machine may have computed


@command
def compact(
    run: Annotated[Place, ARGUMENT],
    out: Place,
    *,
    posterior: bool = False,
    force: bool = False,
    trust: bool = False,
) -> Json:
    """Remove what pruning left without effect, and write a bundle that others can load.

    Args:
        run: Run folder of `prune`.
        out: Bundle folder to write.
        posterior: Store the posterior too, for predictions with draws.
        force: Replace the bundle in `out`.
        trust: Import the factory of a network module:... that a run or file names, if it is
            unchanged; a run's stored graph is used unless given.
    """
    source, out = RunFolder(Path(run)), Path(out)
    if same_place(out, source.path):
        raise UsageError("`out` must differ from the run that is compacted.")
    check_out(out, force=force)
    opened = load(run, device="cpu", trust=trust)
    sparse = opened.model
    if not isinstance(sparse, SparseModel):
        raise UsageError(
            f"{source.path} is not pruned, so nothing can be removed. First run "
            f"`prune({source.path}, zeros=0.9, out=RUN)`."
        )
    test = opened.data.test
    note("cutting out units without effect")
    small: Any = compact_model(sparse, test.x[:64])
    likelihood = sparse.network.likelihood_at(sparse.posterior.mean)
    note(f"testing both networks on {len(test):,} examples")
    masked, compacted = evaluate(sparse, test), evaluate(as_point(small, likelihood), test)
    result: Json = {}
    if source.finished and isinstance(source.read("metrics.json").get("dense"), dict):
        result["dense"] = source.read("metrics.json")["dense"]
    a, b = masked.prediction, compacted.prediction
    changed = None  # of a regression
    if isinstance(a, ClassPrediction) and isinstance(b, ClassPrediction):
        changed = int((a.label.cpu() != b.label.cpu()).sum())
    report = small.compaction.to_dict()
    result |= {
        "masked": numbers(masked, sparse),
        "compacted": {**compacted.to_dict(), "bytes": stored_bytes(small)},
        "compaction": report,
        "changed_predictions": changed,
        "n_test": len(test),
    }
    note("writing the bundle, and reading it back")
    read = report["input_features"]  # which ones stands in the weights already
    short = {**report, "input_features": None if read is None else len(read)}
    save_bundle(
        small,
        out,
        example=test.x[:1],
        posterior=sparse.posterior if posterior else None,
        sparse=sparse,
        thresholds=source.record.get("rule"),
        metrics={**result, "compaction": short},
        **_origin(opened),
        force=force,
    )
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    return {**result, "bundle": str(out), "bundle_bytes": sum(sizes.values()), "files": sizes}


def _origin(run: Run) -> Json:
    """Data and run that a bundle comes from: arguments of `save_bundle`."""
    return {
        "familiarity": run.familiarity,
        "preprocessing": run.data.preprocessing or None,
        "classes": run.data.classes,
        "feature_names": run.data.feature_names,
        "config": provenance(run),
    }


def provenance(run: Run) -> Json:
    """Return how a bundle came about; of paths only the last part, since bundles travel."""
    settings = {name: to_dict(run.config)[name] for name in ("data", "net", "engine", "training")}
    kind, colon, rest = str(settings["data"]["name"]).partition(":")
    settings["data"]["name"] = f"{kind}:{Path(rest).name}" if colon else kind
    if settings["net"]["warm_start"] is not None:
        settings["net"]["warm_start"] = Path(settings["net"]["warm_start"]).name
    used = {
        name: {key: value for key, value in section.items() if value not in (None, [])}
        for name, section in settings.items()
    }
    source = None if run.folder is None else run.folder.path.name
    made = {"source": source, "run": used, "versions": versions("torch", "safetensors"),
            "kl": run.config.tempering}  # fmt: skip
    return made if run.certificate is None else {**made, "certificate": run.certificate}


@command
def verify(
    bundle: Annotated[Place, ARGUMENT],
    against: Place | None = None,
    *,
    trust: bool = False,
) -> Json:
    """Check a bundle's files, and its outputs against another model; exit code 1 if they differ.

    Args:
        bundle: Bundle folder.
        against: Run or bundle that must give the same outputs.
        trust: Import the factory of a network module:... that a run or file names, if it is
            unchanged; a run's stored graph is used unless given.
    """
    path = Path(bundle)
    if not is_bundle_folder(path):
        raise UsageError(f"{path} is a run folder; give a bundle, and the run as `against`.")
    stored = read_bundle(path)
    result: Json = {"bundle": str(path), "files": _check_files(stored)}
    result["recorded_outputs"] = _check_recorded(stored)
    if stored.config.get("posterior") is not None:
        result["posterior"] = type(stored.posterior).__name__
    if against is not None:
        result |= {"against": str(against), **_compare(stored, Path(against), trust=trust)}
    return {**result, "ok": True}


def _check_files(bundle: Bundle) -> int:
    """Number of files whose content is the recorded one."""
    recorded = bundle.config.get("sha256")
    if not isinstance(recorded, dict):
        raise VerificationError(f"verify: {bundle.path / 'config.json'} records no checksums.")
    for name, expected in recorded.items():
        if name != Path(name).name or not (bundle.path / name).is_file():
            raise VerificationError(f"verify: {bundle.path} lacks the file {name!r}.")
        if sha256(bundle.path / name) != expected:
            raise VerificationError(
                f"verify: {bundle.path / name} was changed after the bundle was written."
            )
    source = bundle.path / "architecture.py"
    expected = architecture_source(bundle.config["graph"]).encode()
    if source.is_file() and source.read_bytes() != expected:
        raise VerificationError(f"verify: {source} does not describe the network of the bundle.")
    return len(recorded) + source.is_file()


def _check_recorded(bundle: Bundle) -> float | None:
    """Largest difference to the outputs recorded at saving, relative to their scale."""
    recorded = bundle.config.get("check")
    if not isinstance(recorded, list) or not recorded:
        return None
    outputs = check_outputs(bundle.module, bundle.input_shape, bundle.dtype)
    are_numbers = all(isinstance(value, int | float) for value in recorded)
    if outputs is None or len(outputs) != len(recorded) or not are_numbers:
        raise VerificationError(f"verify: {bundle.path} gives other outputs than recorded.")
    scale = max(1.0, *(abs(value) for value in recorded))
    worst = max(abs(a - b) for a, b in zip(outputs, recorded, strict=True)) / scale
    if worst > _TOLERANCE:
        raise VerificationError(
            f"verify: {bundle.path} gives other outputs than recorded when it was written: they "
            f"differ by {worst:.2g} of their scale."
        )
    return worst


def _compare(bundle: Bundle, against: Path, *, trust: bool) -> Json:
    other = read_folder(against, trust=trust)
    if isinstance(other, Bundle):
        reference: nn.Module = other.module
        x = example_input(other.input_shape, other.dtype, 256)
    else:
        reference, x = other.posterior.to_module(), other.data.test.x
    if tuple(x.shape[1:]) != bundle.input_shape:
        raise VerificationError(
            f"verify: {bundle.path} takes inputs of shape {bundle.input_shape}, {against} "
            f"{tuple(x.shape[1:])}."
        )
    try:
        difference = verify_outputs(bundle.module, reference, x[:256])
    except VerificationError as error:
        reason = str(error).partition(" Please report")[0].removeprefix("verify: ")
        raise VerificationError(f"verify: {bundle.path} is not {against}: {reason}") from error
    with torch.no_grad():
        rows = [(bundle.module(batch), reference(batch)) for batch in x.split(1024)]
    outputs, expected = (torch.cat(column) for column in zip(*rows, strict=True))
    scale = max(1.0, float(expected.abs().max()))
    result = {
        "max_difference": max(difference, float((outputs - expected).abs().max()) / scale),
        "n_inputs": len(x),
    }
    if bundle.classes is not None and outputs.shape[-1] > 1:
        result["changed_predictions"] = int((outputs.argmax(-1) != expected.argmax(-1)).sum())
    return result


@command
def export(
    source: Annotated[Place, Arg(positional=True, metavar="BUNDLE")],
    to: Literal["onnx", "pt2", "c", "bundle"],
    out: Place,
    *,
    samples: WholeNumber = 0,
    seed: int = 0,
    prepared: bool = False,
    int8: bool = False,
    masked_ok: bool = False,
    force: bool = False,
    trust: bool = False,
) -> Json:
    """Write a model as ONNX, torch.export, a C header or a bundle, checked against torch.

    Args:
        source: Bundle of `compact`, or a run.
        to: What to write.
        out: File to write; a folder for a bundle.
        samples: onnx: bake in so many posterior draws, for uncertainties.
        seed: onnx: seed of the draws.
        prepared: onnx: take prepared numbers; otherwise a model of images takes raw pixels.
        int8: c: weights of 8 bits.
        masked_ok: Export a run as it is: zeros stay, size and speed too.
        force: Replace what is at `out`.
        trust: Import the factory of a network module:... that a run or file names, if it is
            unchanged; a run's stored graph is used unless given.
    """
    source, out = Path(source), Path(out)
    if samples and to != "onnx":
        raise UsageError("`samples` is for `to=onnx`.")
    if prepared and to != "onnx":
        raise UsageError("`prepared` is for `to=onnx`.")
    if int8 and to != "c":
        raise UsageError("`int8` is for `to=c`.")
    if same_place(out, source):
        raise UsageError("`out` must differ from what is exported.")
    if to == "bundle":
        check_out(out, force=force)
    else:
        check_out_file(out, model_files(source), force=force)
    if not (is_bundle_folder(source) or masked_ok):
        raise UsageError(
            f"{source} is a run, not a bundle: its model is only masked, so a file made of it is "
            f"as large and slow as the dense one. Run `compact({source}, out=BUNDLE)` "
            "first, or add `masked_ok`."
        )
    model = read_folder(source, trust=trust)
    masked = isinstance(model, Run)
    point = isinstance(model, Bundle) and model.config.get("posterior") is None
    posterior = None if point else model.posterior  # a damaged one is refused here
    if samples and posterior is None:
        raise UsageError(
            "`samples` needs a posterior, which this bundle lacks; write it with "
            "`compact(posterior=True)`."
        )
    note(f"writing {to}, and comparing it with torch")
    write_form(
        model, to, out, n_samples=samples, seed=seed, prepared=prepared,
        int8=int8, force=force,
    )  # fmt: skip
    if masked:
        warn(
            "exported as it is: weights that were removed are zeros in full-size tensors, so the "
            "file is as large and as slow as before pruning. `bayesieve compact` removes them."
        )
    files = sorted(out.iterdir()) if out.is_dir() else [out]
    size = sum(path.stat().st_size for path in files)
    return {
        "to": to, "out": str(out), "bytes": size, "masked": masked, "samples": samples,
    }  # fmt: skip


def write_form(
    model: Run | Bundle, to: str, out: Path, *, n_samples: int = 0, seed: int = 0,
    prepared: bool = False, int8: bool = False, force: bool = False,
) -> None:  # fmt: skip
    """Write one form of the network of a run, masked as it is, or of a bundle."""
    module: nn.Module
    if isinstance(model, Bundle):
        module, example = model.module, example_input(model.input_shape, model.dtype, 8)
        preprocessing, classes = model.config.get("preprocessing"), model.classes
    else:
        module, example = model.posterior.to_module(), model.data.test.x[:64]
        preprocessing, classes = model.data.preprocessing or None, model.data.classes
    if to == "onnx":
        from bayesieve.deliver.onnx import export_onnx, takes_pixels

        if isinstance(model, Bundle):
            likelihood = likelihood_from_json(model.config.get("likelihood"), classes)
        else:
            likelihood = model.model.network.likelihood_at(model.posterior.mean)
        export_onnx(
            module,
            out,
            example,
            posterior=model.posterior if n_samples else None,
            n_samples=n_samples,
            seed=seed,
            classes=classes,
            preprocessing=preprocessing,
            likelihood=likelihood,
            familiarity=model.familiarity,
            raw=not prepared and takes_pixels(preprocessing, example),
        )
    elif to == "pt2":
        from bayesieve.deliver.export import export_pt2

        export_pt2(module, out, example)
    elif to == "c":
        from bayesieve.deliver.c import export_c

        export_c(
            module,
            out,
            example,
            int8=int8,
            familiarity=model.familiarity,
            preprocessing=preprocessing,
            classes=classes,
        )
    elif isinstance(model, Bundle):
        copy_bundle(model, out, force=force)
    else:
        sparse = model.model if isinstance(model.model, SparseModel) else None
        save_bundle(
            module,
            out,
            example=example,
            posterior=model.posterior,
            sparse=sparse,
            **_origin(model),
            force=force,
        )
