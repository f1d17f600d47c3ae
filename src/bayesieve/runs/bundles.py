"""What the commands around bundles share: where to write, and what lies in a folder."""

from pathlib import Path

from bayesieve.errors import UsageError


def check_out(out: Path, *, force: bool) -> None:
    """Raise unless a bundle may be written to --out; its parent folders are made."""
    from bayesieve.deliver.bundle import check_free

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        check_free(out, force=force)
    except (FileExistsError, NotADirectoryError) as error:
        hint = "" if force else " Use --force, or another --out."
        reason = str(error).removeprefix("save: ").replace("; use force to replace a bundle", "")
        raise UsageError(f"--out: {reason}{hint}") from error


def check_out_file(out: Path, *, force: bool) -> None:
    """Raise unless a file may be written to --out; its parent folders are made."""
    if out.is_dir():
        raise UsageError(f"--out {out} is a folder; give a file name.")
    if out.exists() and not force:
        raise UsageError(f"--out {out} exists; use --force to replace it, or another --out.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"--out {out}: {out.parent} is no folder.") from error


def is_bundle_folder(path: Path) -> bool:
    """Whether a folder is a bundle; raises unless it is a bundle or a run."""
    from bayesieve.deliver.bundle import is_bundle

    if not path.is_dir():
        raise UsageError(f"there is no folder {path}.")
    if not (path / "config.json").is_file():
        raise UsageError(f"{path} is neither a bundle nor a run folder: it has no config.json.")
    return is_bundle(path)
