"""kill -9 at any change of a file: nothing of the user's is lost, no part passes for the whole."""

import os
import shutil
import signal

import pytest

from faults.moments import kill, stopped_at, tear
from faults.rows import cases, spread
from faults.work import COMMANDS

pytestmark = pytest.mark.skipif(os.name != "posix", reason="SIGKILL and fork")
OVER = [(name, over) for name in COMMANDS for over in (False, True)]
SHORT = [("train", True), ("prune", False), ("compact", True), ("export c", True), ("report", True),
         ("sweep", True)]  # fmt: skip


@pytest.mark.parametrize(("name", "over"), cases(SHORT, OVER))
def test_a_command_that_is_killed(tmp_path, work, tally, name, over):
    moments = work.moments(name, over)
    for n in chosen(name, over, len(moments)):
        for act in cases((tear,), (tear, kill)):
            if act is tear and not moments[n - 1].startswith("fsync") and cases(False, True):
                continue
            home = tmp_path / f"{n}"
            arguments = work.place(name, home, over)
            stopped = stopped_at(home, arguments, n, act)
            words = f"{name}, over={over}, {act.__name__} at {n} of {len(moments)}"
            assert stopped.code == -signal.SIGKILL, (words, stopped.text)
            tally.injected()
            work.check(name, home, over, tally, f"{words} ({stopped.moments[-1]})")
            shutil.rmtree(home)


def chosen(name, over, n):
    """Moments to try: one in the middle, elsewhere for each command; or many."""
    if cases(True, False):
        return [1 + (n * (SHORT.index((name, over)) + 1)) // 12]
    return spread(n, {"fit-table": 4, "report": 6}.get(name, 13))
