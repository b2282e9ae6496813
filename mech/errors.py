"""The one exception that means "the caller asked for something that cannot be had"."""


class InputError(ValueError):
    """The user's mistake, in one sentence that says what to do; the command line prints it without a traceback."""
