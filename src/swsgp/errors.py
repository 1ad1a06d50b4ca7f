"""What swsgp raises and warns. Every error is also the standard exception that ordinary handlers expect."""


class SwsgpError(Exception):
    """Base of every error that swsgp raises on purpose."""


class DataError(SwsgpError, ValueError):
    """The data cannot be used as they are: a shape, a type, a missing value, a label."""


class SettingError(SwsgpError, ValueError):
    """A setting is out of its range, or two settings contradict each other."""


class DataFolderError(SwsgpError, FileNotFoundError):
    """A named data set is not in the data folder."""


class NumericalError(SwsgpError, ArithmeticError):
    """A result is not finite, and neither more jitter nor smaller steps helped."""


class ModelFileError(SwsgpError, ValueError):
    """A file is not a model, is damaged, or comes from a newer version."""


class DataWarning(UserWarning):
    """The data hold something unexpected, and were used in a stated way."""


class FitWarning(UserWarning):
    """Training met a difficulty and went on in a stated way."""
