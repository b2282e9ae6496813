"""The exception for mistakes of the user."""


class InputError(ValueError):
    """A user's mistake, as a sentence with the remedy; the command line prints it without a traceback."""
