"""Errors that a user sees."""


class MigrationError(Exception):
    """Something could not be translated; the text says where and why. The exit status is 1."""


class UsageError(MigrationError):
    """The command line, or a file that it names, is wrong. The exit status is 2."""
