"""The one exception that users are meant to see: one line, no traceback."""


class FerVitError(Exception):
    """Something the user can mend.

    The message is one line that says what was expected, what came, and what to do. The command line prints it without a
    traceback and exits with code 2 (`--debug` shows the traceback).
    """
