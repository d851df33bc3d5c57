"""A notebook file whose outputs are replaced; everything else stays unchanged."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from typing import Any

from .outputs import Execution

# The types besides text/* that nbformat stores as a list of lines.
_LINES = ("application/javascript", "image/svg+xml")

# Bound on the comparisons of two texts that consist of equal lines.
_MAX_TRIES = 1000


class NotebookError(Exception):
    """The file is not a notebook, or cannot be read or written. The text is for the user."""


class Notebook:
    """A notebook of nbformat 4."""

    def __init__(self, path: str):
        """Reads the file. Raises NotebookError."""
        self.name = path
        self.path = os.path.realpath(path)  # a link's target is replaced, not the link
        self._text = _read(self.path)
        try:
            self._json = json.loads(self._text)
        except ValueError as err:
            raise NotebookError(f"{path} is not a notebook: {err}") from err
        if not isinstance(self._json, dict) or not isinstance(self._json.get("cells"), list):
            raise NotebookError(f"{path} is not a notebook of format 4; open and save it once to have it converted")
        self._changed = False

    @property
    def ids(self) -> set[str]:
        """The ids of its code cells. Notebooks before format 4.5 have no ids."""
        return {cell["id"] for _, cell in self._code_cells() if isinstance(cell.get("id"), str)}

    def find(self, execution: Execution) -> tuple[int, dict[str, Any]] | None:
        """Returns the cell of an execution and its place among all cells, from 1.

        A cell without an id is matched by its source, if only one cell has that source."""
        alike = []
        for place, cell in self._code_cells():
            if cell.get("id") == execution.cell:
                return place, cell
            if "id" not in cell and execution.code is not None and _joined(cell.get("source")) == execution.code:
                alike.append((place, cell))
        return alike[0] if len(alike) == 1 else None

    def restore(self, cell: dict[str, Any], execution: Execution) -> bool:
        """Writes an execution's outputs and count into a cell. Returns False if the cell has them already.

        If the log has dropped the execution's beginning, the cell's outputs are kept and continued.
        """
        before = [_split(_flat(output)) for output in cell.get("outputs") or []]
        after = execution.outputs
        if execution.beginning_lost:
            after = _continue([_flat(output) for output in cell.get("outputs") or []], after)
        after = [_split(output) for output in after]
        count = execution.count if execution.count is not None else cell.get("execution_count")
        if before == after and cell.get("execution_count") == count:
            return False
        cell["outputs"] = after
        cell["execution_count"] = count
        self._changed = True
        return True

    @staticmethod
    def source(cell: dict[str, Any]) -> str:
        """A cell's source."""
        return _joined(cell.get("source"))

    def save(self) -> bool:
        """Replaces the file atomically and keeps its layout. Raises NotebookError.

        Returns False and writes nothing if the file has changed since it was read.
        """
        if not self._changed:
            return True
        if _read(self.path) != self._text:
            return False
        indent = re.match(r"\{\r?\n([ \t]+)", self._text)
        ascii_only = self._text.isascii() and "\\u" in self._text
        text = json.dumps(self._json, indent=indent.group(1) if indent else None, ensure_ascii=ascii_only)
        end = self._text[len(self._text.rstrip()) :]
        _replace(self.path, (text + end).encode("utf-8", "surrogatepass"))
        return True

    def _code_cells(self) -> list[tuple[int, dict[str, Any]]]:
        return [
            (i + 1, cell)
            for i, cell in enumerate(self._json["cells"])
            if isinstance(cell, dict) and cell.get("cell_type") == "code"
        ]


def _continue(before: list[dict[str, Any]], kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Joins saved outputs with the end of the same outputs from a log. Overlapping text is merged. Otherwise both are
    kept, with the text about dropped messages between them."""
    streams = [
        i
        for i, output in enumerate(kept)
        if output["output_type"] == "stream" and not output["text"].startswith("[ekg] ")
    ]
    if before[-len(kept) :] == kept:
        return before  # joined already
    if not streams or not before:
        return before + kept
    start = kept[streams[0]]
    for i, output in enumerate(before):
        if output.get("output_type") == "stream" and output.get("name") == start["name"]:
            at = _overlap(output["text"], start["text"])
            if at is not None:
                joined = {**start, "text": output["text"][:at] + start["text"]}
                return before[:i] + [joined] + kept[streams[0] + 1 :]
    return before + kept


def _overlap(saved: str, kept: str) -> int | None:
    """Returns the position in the saved text at which the kept text begins, at the start of a line, or None."""
    line = kept[: kept.find("\n") + 1]
    at = saved.find(line) if line else -1
    for _ in range(_MAX_TRIES):
        if at < 0:
            return None
        rest = saved[at:]
        if (at == 0 or saved[at - 1] == "\n") and (kept.startswith(rest) or rest.startswith(kept)):
            return at
        at = saved.find(line, at + 1)
    return None


def _flat(output: dict[str, Any]) -> dict[str, Any]:
    """Returns an output with joined texts."""
    flat = dict(output)
    if "text" in flat:
        flat["text"] = _joined(flat["text"])
    if isinstance(flat.get("data"), dict):
        flat["data"] = {k: _joined(v) if _is_lines(k) else v for k, v in flat["data"].items()}
    return flat


def _split(output: dict[str, Any]) -> dict[str, Any]:
    """Returns an output with its texts as lists of lines, as in a file."""
    split = dict(output)
    if isinstance(split.get("text"), str):
        split["text"] = split["text"].splitlines(True)
    if isinstance(split.get("data"), dict):
        split["data"] = {
            k: v.splitlines(True) if isinstance(v, str) and _is_lines(k) else v for k, v in split["data"].items()
        }
    return split


def _is_lines(mime: str) -> bool:
    return mime.startswith("text/") or mime in _LINES


def _joined(text: Any) -> Any:
    return "".join(text) if isinstance(text, list) and all(isinstance(part, str) for part in text) else text


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError as err:
        raise NotebookError(f"there is no notebook {os.path.relpath(path)}") from err
    except (OSError, UnicodeDecodeError) as err:
        raise NotebookError(f"{path} cannot be read: {err}") from err


def _replace(path: str, data: bytes) -> None:
    """Writes a temporary file and renames it, so that the notebook is complete at every moment."""
    folder, name = os.path.split(path)
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, os.stat(path).st_mode & 0o7777)
        os.replace(temporary, path)
    except OSError as err:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise NotebookError(f"{path} cannot be written: {err}") from err
