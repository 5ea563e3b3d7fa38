"""Errors that a user can solve."""


class UserError(RuntimeError):
    """The message says what the user can do, so a command prints only the message.

    Attributes:
        exit_status: of the command; 2 if its arguments, the settings or the files that they name are wrong.
    """

    exit_status = 1


class SettingsError(UserError):
    """The settings of this project or of a topic are wrong, or a file that they name. The message names them."""

    exit_status = 2
