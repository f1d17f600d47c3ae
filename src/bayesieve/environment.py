"""Facts of the environment of a process: the cache folder, and its rank among several."""

import os
from pathlib import Path

CACHE_VARIABLE = "BAYESIEVE_CACHE"


def cache_dir() -> Path:
    """Return the cache folder: BAYESIEVE_CACHE, else the user's (it may not exist).

    Example:
        >>> cache_dir().name
        'bayesieve'
    """
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    import platformdirs  # only where no folder is chosen

    return Path(platformdirs.user_cache_dir("bayesieve", appauthor=False))


def is_shared() -> bool:
    """Return whether `torchrun` started this process and others for one run.

    Example:
        >>> is_shared()
        False
    """
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def rank_of_process() -> int:
    """The number of this process among those of one run, of which 0 alone writes files.

    Example:
        >>> rank_of_process()
        0
    """
    return int(os.environ["RANK"]) if is_shared() else 0
