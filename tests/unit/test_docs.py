"""Documentation is true: marked code runs, links lead somewhere, flags and references exist."""

import ast
import doctest
import importlib.util
import inspect
import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import typer

import make_cli
import make_results_table
from bayesieve.cli.main import app
from bayesieve.core.batch import Batch
from contract import test_engines as contract
from problems import conjugate, seeded

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", re.M | re.S)
WITH_CODE = (
    "README.md",
    "docs/quickstart.md",
    "docs/tutorial.md",
    "docs/tutorials/images.md",
    "docs/tutorials/table.md",
    "docs/tutorials/language-model.md",
    "docs/runs.md",
    "docs/logging.md",
    "docs/uncertainty.md",
    "docs/streams.md",
    "docs/adding-an-engine.md",
    "docs/adding-a-likelihood.md",
)
SKELETONS = ROOT / "docs" / "skeletons"


def blocks(path: Path, marker: str) -> list[str]:
    """Fenced blocks whose info string is `marker`."""
    text = path.read_text(encoding="utf-8")
    return [code for info, code in BLOCK.findall(text) if info.strip() == marker]


def in_fewer_epochs(code: str) -> str:
    """The same program with at most six passes or samples, or a tenth of many."""

    def fewer(found: re.Match[str]) -> str:
        n = int(found[2])
        return f"{found[1]}={min(n, max(6, n // 10))}"

    return re.sub(r"\b(epochs|bootstrap|n_sentences)=(\d+)", fewer, code)


@pytest.fixture
def _few_recommended_epochs(monkeypatch):
    """Programs that leave the number of passes open take six, too."""
    monkeypatch.setattr("bayesieve.engines.recipes.recommended_epochs", lambda *_, **__: 6)


@pytest.mark.slow
@pytest.mark.usefixtures("_few_recommended_epochs")
@pytest.mark.parametrize("name", WITH_CODE)
def test_runnable_code_runs(name, tmp_path, monkeypatch, capsys):
    code = blocks(ROOT / name, "python runnable")
    assert code, f"{name} has no block that opens with ```python runnable"
    monkeypatch.setenv("BAYESIEVE_ROOT", str(ROOT))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "docs"}
    for block in code:  # one page is one program
        exec(compile(in_fewer_epochs(block), name, "exec"), namespace)
    assert capsys.readouterr().out


def test_the_first_example_is_short():
    first = blocks(ROOT / "README.md", "python runnable")[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 12


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    missing = [t for t in targets if "://" not in t and not (path.parent / t).exists()]
    assert not missing


def anchors(path: Path) -> set[str]:
    """The names that headings of a page get."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", path.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-") for text in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_headings_find_them(path):
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", text):
        if "://" not in target:
            page = path.parent / target if target else path
            assert anchor in anchors(page), f"{target}#{anchor}"


# Names that a page uses without making them, as a reader has them.
GIVEN = {
    "docs/tables.md": """
        import numpy as np
        X = np.random.default_rng(0).normal(size=(60, 3))
        y, X_new = X[:, 0] - X[:, 1], X[:9]
    """,
    "docs/feature-selection.md": """
        import torch
        x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
        y = x[:, 0].sin()
    """,
}


@pytest.mark.slow
@pytest.mark.usefixtures("_few_recommended_epochs")
@pytest.mark.parametrize("name", GIVEN)
def test_code_that_needs_the_readers_data_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "docs"}
    for block in (textwrap.dedent(GIVEN[name]), *blocks(ROOT / name, "python")):
        if "..." not in block:  # an ellipsis stands for something the reader fills in
            exec(compile(in_fewer_epochs(block), name, "exec"), namespace)


def commands(path: Path) -> list[str]:
    """Lines of shell blocks that call the command line, continued lines joined."""
    lines: list[str] = []
    for block in blocks(path, "sh"):
        lines += block.replace("\\\n", " ").splitlines()
    return [line.partition(" #")[0] for line in lines if line.startswith("bayesieve ")]


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_flags_exist(path):
    for line in commands(path):
        command = typer.main.get_command(app)
        words = line.split()[1:]
        while words and hasattr(command, "commands"):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        known = {
            flag for option in command.params for flag in (*option.opts, *option.secondary_opts)
        }
        unknown = {word for word in words if word.startswith("--")} - known
        assert not unknown, line


def test_every_command_is_described():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    command = typer.main.get_command(app)
    for name in command.commands:
        assert f"bayesieve {name}" in page


def test_every_flag_is_described(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["make_cli.py", "--check"])
    assert make_cli.main() == 0, capsys.readouterr().err


def reference_keys() -> set[str]:
    """Keys such as [Saha] or [Zhu, eq. 1] in docstrings and theory pages."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "studies").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                texts.append(ast.get_docstring(node) or "")
    pattern = re.compile(r"(?<![\w!\]])\[([A-Z][a-z]+)(?:, [^\]]*)?\](?!\()")
    return {key for text in texts for key in pattern.findall(text)} - {"True", "False", "None"}


@pytest.mark.slow
def test_every_reference_resolves():
    page = (ROOT / "docs" / "references.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^- \*\*\[([A-Z][a-z]+)\]\*\*", page, re.M))
    assert not reference_keys() - listed


@pytest.mark.slow
def test_tables_of_results_are_up_to_date(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["make_results_table.py", "--check"])
    assert make_results_table.main() == 0, capsys.readouterr().err


def skeleton(name="engine"):
    spec = importlib.util.spec_from_file_location("skeleton", SKELETONS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["skeleton"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["engine", "likelihood"])
def test_the_doctests_of_the_skeletons(name):
    failed, attempted = doctest.testmod(skeleton(name))
    assert attempted > 0
    assert failed == 0


# One names `lr` and wants the repr importable there, one lists the engines of the house.
NOT_FOR_THE_SKELETON = {
    "test_engines_are_frozen_hashable_printable_and_comparable",
    "test_as_many_numbers_as_members_are_needed",
}
PROMISES = {
    name: promise
    for name, promise in vars(contract).items()
    if name.startswith("test_")
    and name not in NOT_FOR_THE_SKELETON
    and set(inspect.signature(promise).parameters) in ({"engine"}, {"engine", "k"})
}


@pytest.mark.parametrize("promise", PROMISES.values(), ids=PROMISES.keys())
def test_the_skeleton_keeps_the_promises_of_an_engine(promise):
    engine = skeleton().Langevin(step_size=0.01)
    if "k" not in inspect.signature(promise).parameters:
        promise(engine)
        return
    for k in (1, 3):
        promise(engine, k)


@pytest.mark.slow
def test_the_skeleton_draws_from_the_posterior():
    """4000 chains on y = w x + noise against the exact posterior of the one weight."""
    exact = conjugate(d=1)
    engine = skeleton().Langevin(prior=contract.Normal(exact.prior_std), step_size=2e-3)
    problem = exact.problem
    state = engine.init(problem, seeded(0), 4000)
    for _ in range(200):
        engine.step(problem, state, Batch(problem.x, problem.y))
    draws = state.w[:, 0]
    error = exact.std[0] / len(draws) ** 0.5
    assert abs(draws.mean() - exact.mean[0]) < 4 * error
    # a constant step inflates the variance by 1 / (1 - ε / (4 var)), here about 3 %
    inflated = exact.std[0] / (1 - 2e-3 / (4 * exact.std[0] ** 2)).sqrt()
    torch.testing.assert_close(draws.std(), inflated, rtol=4 / (2 * len(draws)) ** 0.5, atol=0)


def test_the_tour_counts_its_lines():
    rows = re.findall(
        r"^\| \d \| \[`[^`]+`\]\(([^)]+)\) \| (\d+) \|",
        (ROOT / "docs" / "tour.md").read_text(encoding="utf-8"),
        re.M,
    )
    assert len(rows) == 6
    for path, stated in rows:
        lines = len((ROOT / "docs" / path).read_text(encoding="utf-8").splitlines())
        assert abs(lines - int(stated)) <= max(20, lines // 10), f"{path} has {lines} lines"
