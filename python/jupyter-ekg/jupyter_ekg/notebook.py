"""A notebook file whose outputs are replaced; everything else stays unchanged."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from typing import Any, Callable

import nbformat
from nbformat.v4.rwbase import rejoin_lines, split_lines

from .outputs import Execution, moment

# The type of an output that shows a widget.
_WIDGET = "application/vnd.jupyter.widget-view+json"


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

    def restore(self, cell: dict[str, Any], execution: Execution, widgets: dict[str, Any]) -> bool:
        """Writes an execution's outputs and count into a cell, and the widgets that these show.

        Returns False if the file has them already."""
        before, after = _with(rejoin_lines, cell.get("outputs") or []), execution.outputs
        count = execution.count if execution.count is not None else cell.get("execution_count")
        shows = any(_WIDGET in output.get("data", {}) for output in after)
        added = self._add(widgets if shows else {})
        if before == after and cell.get("execution_count") == count and not added:
            return False
        cell["outputs"] = _with(split_lines, after)
        cell["execution_count"] = count
        self._changed = True
        return True

    def _add(self, widgets: dict[str, Any]) -> bool:
        """Adds states of widgets to those in the metadata. Returns whether any was not there."""
        if not widgets:
            return False
        metadata = self._json.setdefault("metadata", {}).setdefault("widgets", {})
        default = {"version_major": 2, "version_minor": 0}
        states = metadata.setdefault("application/vnd.jupyter.widget-state+json", default).setdefault("state", {})
        if all(states.get(name) == widget for name, widget in widgets.items()):
            return False
        states.update(widgets)
        return True

    @staticmethod
    def source(cell: dict[str, Any]) -> str:
        """A cell's source."""
        return _joined(cell.get("source"))

    @staticmethod
    def began(cell: dict[str, Any]) -> float | None:
        """When the run of a cell's outputs began, if a front end has noted it: JupyterLab with ``recordTiming``."""
        metadata = cell.get("metadata")
        timing = metadata.get("execution") if isinstance(metadata, dict) else None
        return moment(timing.get("iopub.execute_input")) if isinstance(timing, dict) else None

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


def _with(lines: Callable[[Any], Any], outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns outputs with their texts as nbformat's function makes them of a notebook's."""
    return lines(nbformat.from_dict({"cells": [{"cell_type": "code", "outputs": outputs}]})).cells[0].outputs


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
