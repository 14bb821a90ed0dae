"""Errors that a user can act on."""


class InputError(Exception):
    """The tool, its input or its surroundings are wrong.

    The message is one line that names the input, what was expected and what to do.
    The command line turns it into exit code 3.
    """
