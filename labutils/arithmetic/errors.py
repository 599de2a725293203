"""What the arithmetic refuses: a config it cannot read, and an architecture or attention it has no rule for."""

from labutils.errors import LabError


class ConfigError(LabError, ValueError):
    """A config cannot be read: the message names the field, its value and what it must be."""


class UnknownArchitecture(ConfigError):
    """There is no verified rule for this model type, layer kind or tensor: it is refused by name, never guessed."""
