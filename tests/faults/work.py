"""Commands that write, a place where each can be stopped, and what must hold there afterwards."""

import json
import shutil
from contextlib import chdir
from dataclasses import dataclass

from commands import call, ok, write_table
from faults.injectors import contents
from faults.moments import stopped_at

DATA = ("--data", "csv:t.csv", "--target", "y", "--net", "mlp:4")
TRAIN = ("train", *DATA, "--steps", "3", "--checkpoint-every", "1", "--no-figures")
PRUNE = ("prune", "a", "--no-figures")
SWEEP = ("sweep", *DATA, "--engine", "map", "--epochs", "1", "--trials", "1", "--no-figures")
TABLE = ("fit-table", "t.csv", "--target", "y", "--epochs", "1", "--hidden", "2", "--no-figures")


@dataclass(frozen=True)
class Command:
    """A command line that writes `out`, and how another result of its kind is made.

    Attributes:
        arguments: the command.
        other: arguments whose result lies in `out` before, where the command replaces something.
        decisive: files of the result that are equal in every run of the command.
        kind: run, bundle, file, page or search.
    """

    arguments: tuple[str, ...]
    other: tuple[str, ...]
    decisive: tuple[str, ...]
    kind: str

    @property
    def force(self):
        return () if self.kind in ("search", "page") else ("--force",)


BUNDLE = ("model.safetensors", "masks.safetensors", "familiarity.safetensors")
COMMANDS = {
    "train": Command((*TRAIN, "--out", "out"), (*TRAIN, "--seed", "7", "--out", "out"),
                     ("posterior.safetensors",), "run"),
    "prune": Command((*PRUNE, "--zeros", "0.5", "--out", "out"),
                     (*PRUNE, "--zeros", "0.3", "--out", "out"), ("posterior.safetensors",), "run"),
    "compact": Command(("compact", "b", "--out", "out"), ("compact", "c", "--out", "out"),
                       BUNDLE, "bundle"),
    "export": Command(("export", "b", "--to", "bundle", "--masked-ok", "--out", "out"),
                      ("export", "c", "--to", "bundle", "--masked-ok", "--out", "out"),
                      (*BUNDLE, "posterior.safetensors"), "bundle"),
    "export c": Command(("export", "b", "--to", "c", "--masked-ok", "--out", "out"),
                        ("export", "c", "--to", "c", "--masked-ok", "--out", "out"), (), "file"),
    "report": Command(("report", "b", "--test-examples", "4"),
                      ("report", "b", "--test-examples", "2"), (), "page"),
    "sweep": Command((*SWEEP, "--out", "out"), (*SWEEP, "--out", "out"), (), "search"),
    "fit-table": Command((*TABLE, "--report", "out", "--out", "bundle"),
                         (*TABLE, "--seed", "7", "--report", "out", "--out", "bundle"),
                         ("posterior.safetensors",), "run"),
}  # fmt: skip


class Work:
    """Folders with a table, runs a (trained), b and c (pruned), and results of every command."""

    def __init__(self, home):
        self.home, self._made, self._moments = home, {}, {}
        home.mkdir()
        write_table(home / "t.csv")
        (home / "notes.txt").write_text("mine")
        with chdir(home):
            ok(*TRAIN, "--out", "a")
            ok(*PRUNE, "--zeros", "0.5", "--out", "b")
            ok(*PRUNE, "--zeros", "0.3", "--out", "c")

    def results(self, name):
        """Homes with the unbroken result of a command, and with the older one it may replace."""
        if name not in self._made:
            command, homes = COMMANDS[name], []
            for which, arguments in (("new", command.arguments), ("old", command.other)):
                home = self.home.with_name(f"{which} {name}")
                shutil.copytree(self.home, home)
                with chdir(home):
                    ok(*arguments)
                homes.append(home)
            self._made[name] = homes
        return self._made[name]

    def place(self, name, home, over):
        """A fresh home for a command, with an older result in its place if asked; and its words."""
        command = COMMANDS[name]
        source = self.results(name)[1] if over else self.home
        shutil.copytree(source, home)
        if over and command.kind in ("run", "search"):
            (home / "out" / "notes.txt").write_text("mine too")
        return (*command.arguments, *(command.force if over else ()))

    def moments(self, name, over):
        """Every change of a file in an unbroken run of a command."""
        if (name, over) not in self._moments:
            home = self.home.with_name(f"unbroken {name} {over}")
            run = stopped_at(home, self.place(name, home, over), 0, None)
            assert run.code == 0, run.text
            self._moments[name, over] = run.moments
        return self._moments[name, over]

    def check(self, name, home, over, tally, words):
        """Look at a home where a command was stopped: read its result, go on, compare."""
        new, old = self.results(name)
        self._check_others(name, home, over, tally, words)
        self._check_read(name, home, (new, old) if over else (new,), tally, words)
        result = self._go_on(name, home, tally, words)
        if result is None:
            return
        command = COMMANDS[name]
        for file in command.decisive:
            if (home / "out" / file).read_bytes() != (new / "out" / file).read_bytes():
                tally.found("silent wrong answers", f"{words}: {file} differs from an unbroken run")
        left = [p for p in home.rglob(".*") if p.name.endswith((".part", ".old", ".lock"))]
        if left:
            tally.found("other failures", f"{words}: left behind {left}")
        self._check_others(name, home, over, tally, words)

    def _check_others(self, name, home, over, tally, words):
        """Nothing that the command does not replace has changed."""
        before = contents(self.results(name)[1] if over else self.home)
        if over and COMMANDS[name].kind in ("run", "search"):
            before["out/notes.txt"] = b"mine too"
        after = contents(home)
        for file, value in before.items():
            if (not ours(file) or file.endswith("notes.txt")) and after.get(file) != value:
                tally.found("lost files", f"{words}: {file}")

    def _check_read(self, name, home, versions, tally, words):
        """What can be read is a whole result, old or new."""
        kind, out = COMMANDS[name].kind, home / "out"
        if kind == "run":
            answer = evaluated(home)
            if answer is not None and answer not in map(self._evaluated, versions):
                tally.found("silent wrong answers", f"{words}: evaluate {answer}")
        if kind in ("file", "page"):
            file = out if kind == "file" else home / "b" / "report.html"
            ends = b"#endif" if kind == "file" else b"</html>"
            if file.exists() and ends not in file.read_bytes()[-200:]:
                tally.found("silent wrong answers", f"{words}: {file.name} is cut off")
        bundles = {"bundle": out, "run": home / "bundle"}
        if (bundle := bundles.get(kind)) is not None and bundle.exists():
            whole = [weights(version / bundle.name) for version in versions]
            if weights(bundle) not in whole:
                tally.found("silent wrong answers", f"{words}: {bundle.name} is no whole bundle")
        elif kind == "bundle" and len(versions) > 1:
            tally.found("lost files", f"{words}: the bundle that was to be replaced")
        if kind == "search" and (out / "sweep.json").exists():
            json.loads((out / "sweep.json").read_bytes())

    def _evaluated(self, version):
        if version not in self._made:
            self._made[version] = evaluated(version)
        return self._made[version]

    def _go_on(self, name, home, tally, words):
        """Do as a user who follows the messages; returns the last result, None if that fails."""
        command = COMMANDS[name]
        arguments = [*command.arguments]
        trials = finished_trials(home)
        with chdir(home):
            for _ in range(3):
                result = call(*arguments)
                if result.exit_code == 0:
                    break
                lines = result.stderr.strip().splitlines()
                last = lines[-1] if lines else ""
                if result.exit_code not in (1, 2) or not last.startswith("error: "):
                    tally.found("other failures", f"{words}: {result.exit_code} {result.stderr}")
                    return None
                if "--resume" in last and "--resume" not in arguments:
                    arguments = ["train", "--resume", "--no-figures", "--out", "out"]
                elif "--force" in last and "--force" not in arguments:
                    arguments = [*command.arguments, "--force"]
                else:
                    tally.found("other failures", f"{words}: no way on: {last}")
                    return None
        if lost := [trial for trial in trials if trial not in finished_trials(home)]:
            tally.found("lost files", f"{words}: finished trials {lost}")
        return result


def ours(file):
    """Whether a file of a home may be changed by the command there."""
    return file.startswith(("out", "bundle", "b/report.html", "b/.bayesieve", ".out.", ".bundle."))


def weights(bundle):
    """The tensors of a bundle as bytes; equal for equal results."""
    return {file.name: file.read_bytes() for file in sorted(bundle.glob("*.safetensors"))}


def finished_trials(home):
    file = home / "out" / "sweep.json"
    return json.loads(file.read_text())["trials"] if file.exists() else []


def evaluated(home):
    """What `evaluate` says of a result; None if it refuses."""
    with chdir(home):
        result = call("evaluate", "out", "--json")
    return result.stdout if result.exit_code == 0 else None
