"""A disk that is full, a quota, a folder that is read-only or gone: one line, nothing lost."""

import errno
import os
import shutil

import pytest

from faults.moments import fail, full, stopped_at, vanish
from faults.rows import cases, spread
from faults.work import COMMANDS

pytestmark = pytest.mark.skipif(os.name != "posix", reason="fork")
ACTS = {
    "no space": fail(errno.ENOSPC),
    "over quota": fail(errno.EDQUOT),
    "read-only": fail(errno.EROFS),
    "no permission": fail(errno.EACCES),
    "disk error": fail(errno.EIO),
    "files of 700 bytes at most": full(700),  # a real limit of the system, in the middle of a write
}
EACH = [(name, act, over) for name in COMMANDS for act in ACTS for over in (False, True)]
SHORT = [("train", "no space", True), ("prune", "files of 700 bytes at most", False),
         ("export", "read-only", True), ("sweep", "over quota", True)]  # fmt: skip


@pytest.mark.parametrize(("name", "act", "over"), cases(SHORT, EACH))
def test_a_disk_that_takes_no_more(tmp_path, work, tally, name, act, over):
    n_moments = len(work.moments(name, over))
    for n in moments(name, n_moments, (name, act, over)):
        home = tmp_path / f"{n}"
        arguments = work.place(name, home, over)
        stopped = stopped_at(home, arguments, n, ACTS[act])
        tally.injected()
        words = f"{name}, over={over}, {act} at {n} of {n_moments} ({stopped.moments[n - 1]})"
        check_message(stopped, tally, words, may_end_well="bytes" in act)  # in the limit already
        work.check(name, home, over, tally, words)
        shutil.rmtree(home)


@pytest.mark.parametrize("name", cases(["prune"], list(COMMANDS)))
def test_a_folder_that_vanishes(tmp_path, work, tally, name):
    n_moments = len(work.moments(name, False))
    for n in cases([n_moments // 2], spread(n_moments, 4)):
        home = tmp_path / f"{n}"
        arguments = work.place(name, home, False)
        stopped = stopped_at(home, arguments, n, vanish("out"))
        tally.injected()
        words = f"{name}, vanished at {n} of {n_moments} ({stopped.moments[n - 1]})"
        check_message(stopped, tally, words, may_end_well=True)
        work.check(name, home, False, tally, words)
        shutil.rmtree(home)


def check_message(stopped, tally, words, may_end_well=False):
    """The command failed with one line that names a file."""
    tally.check_end(stopped.code, stopped.text, words)
    last = (stopped.text.strip().splitlines() or [""])[-1]
    if stopped.code == 0 and may_end_well:
        return
    if stopped.code not in (1, 2):
        tally.found("wrong exit codes", f"{words}: {stopped.code} {stopped.text[-400:]}")
    elif not last.startswith("error: ") or not any(
        name in last for name in ("out", "bundle", "b/")
    ):
        tally.found("other failures", f"{words}: {last!r}")


def moments(name, n, case):
    """Moments to try: one, elsewhere for each case; or several."""
    if cases(True, False):
        return [1 + (n * (SHORT.index(case) + 1)) // 12]
    return spread(n, 4)[1 : 2 if name in ("fit-table", "report") else 3]
