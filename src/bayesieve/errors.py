"""The exceptions a caller may want to catch; wrong arguments are plain ValueError or TypeError."""


class BayesieveError(Exception):
    """Base of the errors below; the command line prints its message and exits with 1."""


class UnsupportedModelError(BayesieveError):
    """The network holds something this engine or function cannot handle."""


class DivergedError(BayesieveError):
    """Training met a number that is not finite."""


class VerificationError(BayesieveError):
    """A result failed its own check against the thing it was made from."""


class DataError(BayesieveError):
    """A data file is missing, damaged or not what its name says."""
