"""``jupyter ekg``: commands for users whose kernels run behind ekg."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys

from ._version import __version__


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns the exit status: 0 for success, 1 for an error, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="jupyter ekg", description="Commands for kernels behind ekg, the Elastic Kernel Gateway."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    restore = commands.add_parser(
        "restore",
        help="write into a notebook file the output that its cells printed while no page was open",
        description="Reads the log of a notebook's kernel and writes the output of each cell's newest execution into"
        " the file. Without options, the kernel is searched at the gateway in JUPYTER_GATEWAY_URL (token in"
        " JUPYTER_GATEWAY_AUTH_TOKEN) and at the Jupyter servers that run on this machine.",
    )
    restore.add_argument("notebook", metavar="NOTEBOOK", help="the file")
    restore.add_argument("--kernel", metavar="ID", help="the kernel's id, if the kernel is not found automatically")
    where = restore.add_mutually_exclusive_group()
    where.add_argument("--gateway-url", metavar="URL", help="the gateway")
    where.add_argument("--server", metavar="URL", help="a Jupyter server that has jupyter-ekg and --gateway-url")
    restore.add_argument(
        "--token",
        help="the gateway's or the server's token; other users of this machine can see it in the process list",
    )
    restore.add_argument("--follow", action="store_true", help="wait until running cells have ended")
    args = parser.parse_args(argv)

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        return _restore(args)
    except KeyboardInterrupt:
        print("jupyter ekg: interrupted; the notebook was not changed", file=sys.stderr)
        return 130


def _restore(args: argparse.Namespace) -> int:
    from jupyter_server.gateway.gateway_client import GatewayClient

    from .restore import NotebookError, RestoreError, restore, sources

    try:
        if args.gateway_url:
            GatewayClient.instance().url = args.gateway_url
        if args.token and not args.server:
            GatewayClient.instance().auth_token = args.token
        where = sources(args.server, args.token)
        if args.gateway_url:
            where = where[:1]
        asyncio.run(restore(args.notebook, args.kernel, where, args.follow, print))
    except (NotebookError, RestoreError, ValueError) as err:
        print(f"jupyter ekg: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
