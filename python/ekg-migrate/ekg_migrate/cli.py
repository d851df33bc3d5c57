"""``ekg-migrate``: translates settings and kernelspecs of Jupyter Enterprise Gateway 3 for ekg."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from . import kernelspec
from ._version import __version__
from .checks import Checker
from .config import Import
from .errors import MigrationError, UsageError
from .files import printable, to_yaml
from .settings import Output

CHART_EXAMPLES = ("python3", "python3-gpu")
"""The kernelspecs of ekg's chart itself."""


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns the exit status.

    That is 0 for success, 1 for what could not be translated, 2 for a wrong command line, and 3 if lines of templates
    have no counterpart.
    """
    given = sys.argv[1:] if argv is None else argv
    try:
        # Most arguments of config are Enterprise Gateway's options, which argparse does not know.
        if given[:1] == ["config"] and not {"--help", "-h"} & set(given[1:2]):
            return config(given[1:])
        args = _parser().parse_args(given)
        return convert(args)
    except UsageError as err:
        return _fail(err, 2)
    except MigrationError as err:
        return _fail(err, 1)


def _fail(err: object, status: int) -> int:
    print(f"ekg-migrate: {printable(str(err))}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ekg-migrate", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser(
        "config",
        usage="ekg-migrate config [--chart] [--token-file NEWFILE] [FILE | --CLASS.TRAIT=VALUE | NAME=VALUE | -] ...",
        help="translate settings, and print a file for ekg's --config",
        description="FILE is a jupyter_enterprise_gateway_config.py or .json, or has variables as lines NAME=VALUE; - reads"
        " such lines from stdin. Python is parsed and never executed. Only assignments of constants are read; comments of"
        " the output name everything else. --chart prints values for ekg's Helm chart. The token is written to NEWFILE"
        " with mode 0600, and nowhere else.",
    )
    specs = commands.add_parser(
        "kernelspec",
        help="translate kernelspecs with their pod templates",
        description="DIR is the folder of a kernelspec, or of several. The output names each line that ekg has no"
        " counterpart for. The exit status is 0 if everything has a counterpart, 3 if lines were left out, 1 if a"
        " kernelspec could not be converted or written, and 2 if the command line is wrong.",
    )
    specs.add_argument("dirs", metavar="DIR", nargs="+")
    output = specs.add_mutually_exclusive_group(required=True)
    output.add_argument("--output", metavar="FOLDER", help="write each kernelspec into a new folder of FOLDER")
    output.add_argument("--dry-run", action="store_true", help="print each kernel.json instead")
    output.add_argument("--chart", action="store_true", help="print values for ekg's Helm chart instead")
    specs.add_argument("--force", action="store_true", help="replace files of folders that exist in --output")
    specs.add_argument("--template", metavar="FILE", default="", help="pod template, for kernelspecs without one")
    start = specs.add_mutually_exclusive_group()
    start.add_argument("--keep-launcher", action="store_true",
                       help="let the launcher in the image start the kernel, as Enterprise Gateway does")
    start.add_argument("--command", dest="argv", metavar="JSON", type=_texts, default=[],
                       help="argv of the kernel in its image; needed for languages other than Python and R")
    specs.add_argument("--kube-policy", metavar="FILE", default="", help="policy of ekg for kernels' pods")
    specs.add_argument("--ekg", metavar="PROGRAM", default="ekg", help="the program ekg, which checks what is converted")
    return parser


def _texts(text: str) -> list[str]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise argparse.ArgumentTypeError("is not a list of texts in JSON")
    return value


def config(args: list[str]) -> int:
    """Runs ``ekg-migrate config``."""
    rest: list[str] = []
    token_file = None
    words = iter(args)
    for word in words:
        if word == "--token-file":
            token_file = next(words, "")
        elif word.startswith("--token-file="):
            token_file = word.partition("=")[2]
        elif word != "--chart":  # no option of Enterprise Gateway
            rest.append(word)
    if token_file == "":
        raise UsageError("--token-file: is empty")
    if not rest:
        raise UsageError("config: an argument is missing; see ekg-migrate config --help")
    found = Import()
    found.read_arguments(rest)
    if token_file:
        token_file = os.path.abspath(token_file)
        _write_token(found.token(), token_file)
    output = Output(token_file or "", chart="--chart" in args)
    print(output.write(found), end="")
    print(f"ekg-migrate: settings: {output.settings}; without a counterpart: {output.unmatched}; not read: "
          f"{output.unreadable}", file=sys.stderr)
    return 0


def _write_token(token: str, path: str) -> None:
    """Creates a file with the token that only this user can read. It replaces no file."""
    if not token:
        raise MigrationError("--token-file: no token was given")
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(token + "\n")
    except OSError as err:
        raise MigrationError(f"--token-file: {path}: {(err.strerror or str(err)).lower()}") from err


def convert(args: argparse.Namespace) -> int:
    """Runs ``ekg-migrate kernelspec``."""
    checker = Checker(args.ekg, args.kube_policy)
    options = kernelspec.Options(args.template, args.argv, args.keep_launcher)
    specs: dict[str, Any] = {}
    failed = left_out = 0
    folders = kernelspec.spec_folders(args.dirs)
    for folder in folders:
        try:
            left_out += _convert_one(folder, args, options, checker, specs)
        except UsageError:
            raise
        except (MigrationError, OSError) as err:
            failed += 1
            print(f"{folder}: not converted: {printable(str(err))}", file=sys.stderr)
    if specs:
        values = {**dict.fromkeys(CHART_EXAMPLES), **specs}
        print(to_yaml({"kernelspecs": {"specs": values}}), end="")
    if failed:
        raise MigrationError(f"kernelspecs that were not converted: {failed} of {len(folders)}")
    return _fail(f"lines without a counterpart: {left_out}", 3) if left_out else 0


def _convert_one(folder: Path, args: argparse.Namespace, options: kernelspec.Options, checker: Checker,
                 specs: dict[str, Any]) -> int:
    """Translates and writes one kernelspec, and reports what it left out. Returns how many lines that are."""
    if folder.name in ("", ".."):  # a kernelspec has the name of its folder
        folder = folder.resolve()
    done = kernelspec.convert(folder, options, checker)
    if args.dry_run:
        print(done.kernel_json, end="")
    elif args.chart:
        other = next((name for name in specs if name.lower() == folder.name.lower()), None)
        if other is not None:
            raise MigrationError(f"there is a kernelspec {other} already, and names must differ in more than case")
        files = ", ".join(file.name for file in kernelspec.shown_files(folder))
        if files:
            done.notes.append(f"values of the chart have no files, so these are left out: {files}")
        specs[folder.name] = json.loads(done.kernel_json)
    else:
        kernelspec.write(folder, done.kernel_json, Path(args.output), args.force)
    for finding in done.left_out:
        print(f"left out: {printable(str(finding))}", file=sys.stderr)
    for note in done.notes:
        print(f"note: {folder}: {printable(note)}", file=sys.stderr)
    print(f"converted: {folder}; lines without a counterpart: {len(done.left_out)}", file=sys.stderr)
    return len(done.left_out)


if __name__ == "__main__":
    sys.exit(main())
