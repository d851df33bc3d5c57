"""A notebook file whose outputs are replaced, everything else staying as it is."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from typing import Any

from .outputs import Execution

# Besides text/*, what nbformat keeps as a list of lines.
_LINES = ("application/javascript", "image/svg+xml")

# Places at which two texts are compared, where all their lines are alike.
_MOST_TRIES = 1000


class NotebookError(Exception):
    """The file cannot be read as a notebook, or not be written. The text is for the user."""


class Notebook:
    """A notebook of nbformat 4."""

    def __init__(self, path: str):
        """Reads the file. Raises NotebookError."""
        self.name = path
        self.path = os.path.realpath(path)  # what a link points to is replaced, not the link
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
        """The ids of its cells; notebooks before format 4.5 have none."""
        return {cell["id"] for _, cell in self._code_cells() if isinstance(cell.get("id"), str)}

    def find(self, execution: Execution) -> tuple[int, dict[str, Any]] | None:
        """The cell that an execution ran, with its place among all cells from 1; by its id, or, where cells have none, by
        its source if only one has that."""
        alike = []
        for place, cell in self._code_cells():
            if cell.get("id") == execution.cell:
                return place, cell
            if "id" not in cell and execution.code is not None and _joined(cell.get("source")) == execution.code:
                alike.append((place, cell))
        return alike[0] if len(alike) == 1 else None

    def restore(self, cell: dict[str, Any], execution: Execution) -> bool:
        """Puts an execution's outputs and count into a cell. Returns False if they were there already.

        What the cell has stays in front where the log has lost the execution's beginning.
        """
        before = [_split(_flat(output)) for output in cell.get("outputs") or []]
        after = execution.outputs
        if execution.beheaded:
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
        """Replaces the file in one step, in the layout that it has. Raises NotebookError.

        Returns False, and leaves the file alone, if somebody else has written it since it was read.
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
    """Joins what a notebook has saved of an output with what a log has kept of its end. Without loss: where they overlap,
    they are joined; else both are there, with the note of what is missing between them."""
    streams = [i for i, output in enumerate(kept) if output["output_type"] == "stream" and not output["text"].startswith("[ekg] ")]
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
    """Where in a saved text the kept one begins, if they agree from there on, by whole lines."""
    line = kept[: kept.find("\n") + 1]
    at = saved.find(line) if line else -1
    for _ in range(_MOST_TRIES):
        if at < 0:
            return None
        rest = saved[at:]
        if (at == 0 or saved[at - 1] == "\n") and (kept.startswith(rest) or rest.startswith(kept)):
            return at
        at = saved.find(line, at + 1)
    return None


def _flat(output: dict[str, Any]) -> dict[str, Any]:
    """An output with its texts in one piece."""
    flat = dict(output)
    if "text" in flat:
        flat["text"] = _joined(flat["text"])
    if isinstance(flat.get("data"), dict):
        flat["data"] = {k: _joined(v) if _is_lines(k) else v for k, v in flat["data"].items()}
    return flat


def _split(output: dict[str, Any]) -> dict[str, Any]:
    """An output with its texts as lists of lines, as they are in a file."""
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
    """Writes beside the file and renames, so that there is a whole notebook at every moment."""
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
