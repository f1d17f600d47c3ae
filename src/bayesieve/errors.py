"""The exceptions a caller may want to catch; wrong arguments are plain ValueError or TypeError.

The command line exits with 1 on those named here, and with 2 on wrong arguments.
"""

from pathlib import Path

_LONGEST = 600  # characters of a reason, which may quote a file


class BayesieveError(Exception):
    """Base of the errors below: nothing is wrong with the call, but the work cannot be done."""


class UsageError(ValueError):
    """A command, or a function of `bayesieve.runs`, was called wrongly; exit code 2."""


class UnsupportedModelError(BayesieveError):
    """The network holds something this engine or function cannot handle."""


class DivergedError(BayesieveError):
    """Training met a number that is not finite."""


class VerificationError(BayesieveError):
    """A result failed its own check against the thing it was made from."""


class DataError(BayesieveError):
    """A data file is missing, damaged or not what its name says."""


class DamagedFileError(BayesieveError, ValueError):
    """A saved posterior, bundle or run cannot be read as what it should be."""


class LostRankError(BayesieveError):
    """Another process of a run that several share has ended."""


class InUseError(BayesieveError):
    """Another process is writing into the same folder."""


class TooLargeError(DataError, DamagedFileError):
    """A file asks for more memory or time than a limit of `bayesieve.files.LIMITS` allows."""


class ShortOfMemoryError(BayesieveError, MemoryError):
    """A run needs more memory than is free."""


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out: Python's, torch's on a CPU, or a GPU's.

    Example:
        >>> out_of_memory(MemoryError()), out_of_memory(ValueError("no"))
        (True, False)
    """
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))


def shortage() -> str:
    """Name three remedies for a run that does not fit into memory."""
    return (
        "Take a smaller batch (`batch_size`), a smaller network (`net`) or fewer models at once "
        "(`n_models`), or smaller images and fewer examples; `map` and `sbnn` keep the fewest "
        "numbers per weight."
    )


def damaged(path: Path, why: str, who: str = "load") -> DamagedFileError:
    """The error of a saved file, in one wording.

    Example:
        >>> damaged(Path("a.safetensors"), "it is cut off")
        DamagedFileError('load: a.safetensors is damaged: it is cut off.')
    """
    why = why if len(why) <= _LONGEST else f"{why[:_LONGEST]} ..."
    return DamagedFileError(f"{who}: {path} is damaged: {why}.")
