"""Whether outputs in a file can be those of a run in a kernel's log. src/samerun.ts is the same rule for a page.

Each line of text and each other output must be one that the run had. So a file may lack some, or have some twice, as
pages that lose their network save them.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from typing import Any

_NOTICE = "[ekg] "  # begins a line that no kernel has sent


def could_have(run: list[dict[str, Any]], saved: list[dict[str, Any]]) -> bool:
    """Reports whether the run that has these outputs can have had the saved ones."""
    had: set[str] = set()
    lines: list[str] = []
    for output in run:
        pieces, last = _pieces(output)
        had.update(pieces)
        lines += [*pieces, last] if output.get("output_type") == "stream" else []
    lines.sort()
    for output in saved:
        pieces, last = _pieces(output)
        if not had.issuperset(piece for piece in pieces if piece):
            return False
        at = bisect_left(lines, last)  # a line that begins with it, if there is one: it may have been saved within a line
        if last and not any(line.startswith(last) for line in lines[at : at + 1]):
            return False
    return True


def _pieces(output: dict[str, Any]) -> tuple[list[str], str]:
    """Returns an output as comparable texts, and the last line of a stream, which may go on."""
    kind = output.get("output_type")
    if kind == "stream":
        name = output.get("name")
        *lines, last = [
            "" if not line or line.startswith(_NOTICE) else f"{name}:{line}"
            for line in _joined(output.get("text", "")).split("\n")
        ]
        return lines, last
    if kind == "error":
        return [f"error:{output.get('ename')}:{output.get('evalue')}"], ""
    data = output.get("data")
    data = {mime: _joined(value).rstrip("\n") for mime, value in data.items()} if isinstance(data, dict) else {}
    if not data or data.get("text/plain", "").startswith(_NOTICE):
        return [], ""
    return [f"data:{json.dumps(sorted(data.items()))}"], ""


def _joined(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return "".join(value)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
