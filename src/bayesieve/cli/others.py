"""Commands that call no function of `bayesieve.runs`: `doctor`, `version`, `reproduce`, `data`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesieve import __version__
from bayesieve.cli.console import JsonFlag, note, print_json, print_table
from bayesieve.runs.clone import require_studies
from bayesieve.runs.folder import versions

if TYPE_CHECKING:
    from bayesieve.data import DataInfo

Name = Annotated[str, typer.Argument(help="A name of `bayesieve data list`.", metavar="NAME")]
data_app = typer.Typer(
    help="See which data sets there are, and fetch them.",
    epilog="Example: bayesieve data fetch mnist",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_PACKAGES = (
    "torch", "numpy", "scipy", "scikit-learn", "safetensors", "typer", "rich",
    "matplotlib", "pyarrow", "onnx", "onnxruntime",
)  # fmt: skip


def doctor(json: JsonFlag = False) -> None:
    """Show versions, devices, the compiler, and which data sets are found."""
    import torch

    from bayesieve.data import data_root, list_data
    from bayesieve.data.files import ROOT_VARIABLE
    from bayesieve.fast.backend import compiler_missing

    n_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(n_cuda)]
    missing = compiler_missing(torch.device("cuda" if n_cuda else "cpu"))
    facts: dict[str, Any] = {
        "versions": versions("python", "system", *_PACKAGES),
        "devices": ["cpu", *names],
        "threads": torch.get_num_threads(),
        "compiler": "available" if missing is None else missing,
        "data_root": str(data_root()),
        "data_root_set": bool(os.environ.get(ROOT_VARIABLE)),
        "data_found": [info.name for info in list_data() if info.found],
    }
    if json:
        print_json(facts)
        return
    rows = [(name, str(value)) for name, value in facts["versions"].items()]
    rows += [
        ("devices", ", ".join(facts["devices"])),
        ("torch threads", str(facts["threads"])),
        ("compiling", facts["compiler"]),
        ("data folder", facts["data_root"] + ("" if facts["data_root_set"] else " (default)")),
        ("data found", ", ".join(facts["data_found"])),
    ]
    print_table("Bayesieve on this machine", ("", ""), rows, numbers=False)


def version(json: JsonFlag = False) -> None:
    """Print the version."""
    if json:
        print_json({"version": __version__})
    else:
        print(__version__)


def reproduce(
    name: Annotated[
        str,
        typer.Argument(help="`list`, `verify`, or the name of a study or of a row of the list."),
    ] = "list",
    quick: Annotated[bool, typer.Option("--quick", help="Minutes on two CPU cores.")] = False,
    full: Annotated[bool, typer.Option("--full", help="As the committed record.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Repetitions.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the committed records.")] = Path(
        "results"
    ),
    json: JsonFlag = False,
) -> None:
    """List every table and figure of the papers with our numbers, run a study again, or verify."""
    require_studies("reproduce")
    from studies.reproduce.command import reproduce as work

    work(name, quick=quick, full=full, seeds=seeds, device=device, out=out, results=results,
         json=json)  # fmt: skip


OTHERS: list[tuple[Callable[..., None], str]] = [  # with an example of each
    (doctor, "doctor --json"),
    (reproduce, "reproduce sbnn-mnist --quick --out runs/again"),
    (version, "version"),
]


@data_app.command("list", epilog="Example: bayesieve data list")
def list_sets(json: JsonFlag = False) -> None:
    """List the data sets known by name, and whether they are on this machine."""
    from bayesieve.data import data_root, list_data

    sets = list_data()
    if json:
        print_json({"root": str(data_root()), "sets": [_plain(info) for info in sets]})
        return
    rows = [(info.name, info.description, "yes" if info.found else "no") for info in sets]
    print_table(f"Data sets in {data_root()}", ("name", "what it is", "here"), rows, numbers=False)
    print("Your own: csv:PATH, parquet:PATH, npz:PATH (with --target), images:FOLDER_OR_TAR.")


@data_app.command("info", epilog="Example: bayesieve data info mnist")
def info(name: Name, json: JsonFlag = False) -> None:
    """Say what a data set is, where it comes from and where it is."""
    from bayesieve.data import data_info

    facts = data_info(name)
    if json:
        print_json(_plain(facts))
        return
    here = str(facts.location or "comes with scikit-learn")
    where = here if facts.found else "not on this machine"
    rows = [("what it is", facts.description), ("source", facts.source), ("where", where)]
    rows += [("file", file.url) for file in facts.files]
    print_table(facts.name, ("", ""), rows, numbers=False)
    if not facts.found:
        print(f"Get it with: bayesieve data fetch {facts.name}")


@data_app.command("fetch", epilog="Example: bayesieve data fetch mnist")
def fetch(name: Name, json: JsonFlag = False) -> None:
    """Download a data set, check it, and put it where training finds it."""
    from bayesieve.data import fetch_data

    seen: set[str] = set()

    def progress(file: str, done: int, total: int | None) -> None:
        if file not in seen:
            size = "" if total is None else f" ({total / 1e6:.1f} MB)"
            note(f"fetching {file}{size}")
            seen.add(file)

    folder = fetch_data(name, progress)
    if json:
        print_json({"name": name, "folder": str(folder)})
    else:
        print(f"{name} is in {folder}")


def _plain(info: "DataInfo") -> dict[str, Any]:
    return {
        "name": info.name,
        "description": info.description,
        "source": info.source,
        "found": info.found,
        "location": None if info.location is None else str(info.location),
        "files": [file.url for file in info.files],
    }
