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
    rich_markup_mode=None,
)


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
