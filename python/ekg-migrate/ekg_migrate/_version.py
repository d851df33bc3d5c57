"""The package's version; the one of the gateway that it was made with."""

__version__ = "0.1.0.dev0"
