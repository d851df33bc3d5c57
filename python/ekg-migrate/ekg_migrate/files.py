"""Files that are read and written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from .errors import MigrationError

MAX_SIZE = 1 << 20
"""Bounds a file that is read, in bytes. A generated configuration of Enterprise Gateway has 40 KiB."""


def read_small(path: Path) -> str:
    """Reads a regular file of at most MAX_SIZE."""
    try:
        if path.exists() and not path.is_file():
            raise MigrationError(f"{path}: is not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_SIZE + 1)
        if len(data) > MAX_SIZE:
            raise MigrationError(f"{path}: is larger than {MAX_SIZE} bytes")
        return data.decode("utf-8")
    except OSError as err:
        raise MigrationError(f"{path}: {(err.strerror or str(err)).lower()}") from err
    except UnicodeDecodeError as err:
        raise MigrationError(f"{path}: is not UTF-8") from err


def printable(text: str) -> str:
    """Returns a text in which line breaks and other characters that do not print are escaped."""
    return re.sub(r"[^ -~]", lambda m: m[0] if m[0].isprintable() else m[0].encode("unicode_escape").decode(), text)


class _Dumper(yaml.SafeDumper):
    """Writes YAML as ekg does: lists are indented, and texts that look like other types are in double quotes."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        """Indents lists, too."""
        return super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        """Writes values out."""
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    plain = dumper.resolve(yaml.ScalarNode, text, (True, False)) == "tag:yaml.org,2002:str"
    style = "|" if "\n" in text else None if plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(value: Any, flow: bool = False) -> str:
    """Returns a value in YAML; in flow style it has one line."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=flow, width=1 << 30, allow_unicode=True)
    return re.sub(r"\n(\.\.\.\n)?$", "", text) if flow else text
