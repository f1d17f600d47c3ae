"""`bayesieve data list | info NAME | fetch NAME`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesieve.cli.console import JsonFlag, note, print_json, print_table

if TYPE_CHECKING:
    from bayesieve.data import DataInfo

Name = Annotated[str, typer.Argument(help="A name of `bayesieve data list`.", metavar="NAME")]
data_app = typer.Typer(
    help="See which data sets there are, and fetch them.",
    epilog="Example: bayesieve data fetch mnist",
    no_args_is_help=True,
)


@data_app.command("list", epilog="Example: bayesieve data list")
def list_sets(json: JsonFlag = False) -> None:
    """List the data sets known by name, and whether they are on this machine."""
    from bayesieve.data import data_root, list_data

    found = list_data()
    if json:
        print_json({"root": str(data_root()), "sets": [_plain(info) for info in found]})
        return
    rows = [(info.name, info.description, "yes" if info.found else "no") for info in found]
    print_table(f"Data sets in {data_root()}", ("name", "what it is", "here"), rows, numbers=False)
    print("Your info: csv:PATH, parquet:PATH, npz:PATH (with --target), images:FOLDER_OR_TAR.")


@data_app.command("info", epilog="Example: bayesieve data info mnist")
def info(name: Name, json: JsonFlag = False) -> None:
    """Say what a data set is, where it comes from and where it lies."""
    from bayesieve.data import data_info

    info = data_info(name)
    if json:
        print_json(_plain(info))
        return
    where = str(info.location or "comes with scikit-learn") if info.found else "not on this machine"
    rows = [("what it is", info.description), ("source", info.source), ("where", where)]
    rows += [("file", file.url) for file in info.files]
    print_table(info.name, ("", ""), rows, numbers=False)
    if not info.found:
        print(f"Get it with: bayesieve data fetch {info.name}")


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
