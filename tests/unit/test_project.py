"""Promises about the repository itself: pins, reasons for dependencies, no machine's paths."""

import importlib.util
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import bayesieve

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
ALWAYS = [Requirement(line) for line in PROJECT["dependencies"]]
OPTIONAL = [Requirement(line) for extra in EXTRAS.values() for line in extra]
INSTALLED_BY_CI = [*ALWAYS, *(Requirement(line) for line in EXTRAS["dev"])]


def pins(name: str) -> dict[str, str]:
    """Versions by the name of the package, from a file of constraints."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = (line.partition("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(package): version for package, _, version in found}


PINS, LOWEST = pins("constraints.txt"), pins("constraints-lowest.txt")

# An absolute path of one machine: a home, system or drive folder at the start of a path.
MACHINE_PATH = re.compile(
    r"(?<![\w.:/~*$})-])/(?:home|root|Users|work|tmp|var|mnt|opt|private)(?:/|\b(?![\w-]))"
    r"|\b[A-Z]:\\(?:Users|Windows|Program)"
    r"|\.\./shared\b"
)
PRODUCT = (
    "src",
    "studies",
    "docs",
    "examples",
    "benchmarks",
    "README.md",
    "CONTRIBUTING.md",
    "Makefile",
)


def tracked_files() -> list[Path]:
    """Files git knows, or would take with `git add`."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PRODUCT],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('open("/' + 'home/ada/mnist")', True),
        ("see /" + "tmp.", True),
        ("C:" + "\\Users\\ada", True),
        ("python .." + "/shared/x.py", True),
        ("https://example.org/home/index.html", False),
        ("runs/opt/report.html", False),
        ("~/opt/data and $HOME/var/data", False),
        ("forward/root ratio, n/optimiser", False),
    ],
)
def test_the_pattern_for_machine_paths(text, found):
    assert bool(MACHINE_PATH.search(text)) == found


def test_no_file_names_a_path_of_one_machine():
    hits = []
    for path in tracked_files():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        hits += [f"{path.relative_to(ROOT)}: {hit[0]}" for hit in MACHINE_PATH.finditer(text)]
    assert not hits


def test_every_pin_is_exact_and_public():
    for name, version in PINS.items():
        assert re.fullmatch(r"[a-z0-9-]+", name)
        assert re.fullmatch(r"[0-9][0-9a-z.]*", version), f"{name}=={version}"


@pytest.mark.parametrize("requirement", INSTALLED_BY_CI, ids=str)
def test_direct_dependency_is_pinned_inside_its_range(requirement):
    pin = PINS.get(canonicalize_name(requirement.name))
    assert pin is not None, f"constraints.txt does not pin {requirement.name}"
    assert requirement.specifier.contains(pin)


@pytest.mark.parametrize("name", LOWEST)
def test_the_lowest_versions_are_those_that_are_allowed(name):
    """So that `make lowest` tests what pyproject.toml promises."""
    bounds = {
        bound.version
        for requirement in [*ALWAYS, *OPTIONAL]
        if canonicalize_name(requirement.name) == name
        for bound in requirement.specifier
    }
    assert bounds == {LOWEST[name]}


def test_every_dependency_that_is_always_installed_is_tested_at_its_lowest():
    needed = [*EXTRAS["tables"], *EXTRAS["onnx"]]
    names = {canonicalize_name(Requirement(line).name) for line in needed}
    assert names | {canonicalize_name(requirement.name) for requirement in ALWAYS} <= LOWEST.keys()
    assert f"torch {LOWEST['torch']} or newer" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_dependency_has_a_reason_and_no_reason_is_stale():
    table = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    reasons = {canonicalize_name(name) for name in re.findall(r"^\| `([^`]+)`", table, re.M)}
    used = {canonicalize_name(requirement.name) for requirement in ALWAYS + OPTIONAL} | {
        "hatchling"
    }
    assert reasons == used


def test_the_version_is_one():
    version = PROJECT["version"]
    assert bayesieve.__version__ == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"version {version}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_an_index_gets_absolute_links():
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert module.with_addresses(text, "") == text
    absolute = module.with_addresses(text, "https://example.org/raw/v1/")
    assert not re.findall(r"\]\((?!https://|#)[^)]*\)", absolute)
    assert "](https://example.org/raw/v1/docs/images/report-slider.png)" in absolute


def test_ci_entry_is_executable():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_wheel_has_the_package_alone():
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    assert targets["build"]["targets"]["wheel"]["packages"] == ["src/bayesieve"]
    assert not (ROOT / "src" / "bayesieve" / "studies").exists()
    assert (ROOT / "studies" / "__init__.py").is_file()
