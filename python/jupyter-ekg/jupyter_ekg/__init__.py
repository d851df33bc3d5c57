"""Jupyter Server extension for kernels behind ekg, the Elastic Kernel Gateway.

Installing the package enables it, and without ``--gateway-url`` it does nothing. With it:

* ``connection`` replaces the class that connects a browser's websocket to the gateway's;
* ``handlers`` serves a kernel's log to the page that shows its notebook, and what the panel of kernels needs;
* ``watch`` follows the gateway's kernels for the panel;
* ``client`` has the kernel manager for nbclient, papermill and nbconvert;
* ``cli`` is ``jupyter ekg``.
"""

from ._version import __version__

__all__ = ["EkgKernelClient", "EkgKernelManager", "EkgWebsocketConnection", "__version__"]


def __getattr__(name):
    # Loaded on access: each imports much of jupyter_server, which the command line does not need.
    if name in ("EkgKernelClient", "EkgKernelManager"):
        from . import client

        return getattr(client, name)
    if name == "EkgWebsocketConnection":
        from .connection import EkgWebsocketConnection

        return EkgWebsocketConnection
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _jupyter_server_extension_points():
    return [{"module": "jupyter_ekg"}]


def _load_jupyter_server_extension(serverapp):
    from .extension import load

    load(serverapp)
