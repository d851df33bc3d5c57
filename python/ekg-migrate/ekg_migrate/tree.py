"""Values of a rendered template, each with its line in the template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import yaml

from .errors import MigrationError
from .template import Rendering

MAX_VALUES = 20_000
"""Bounds how many values a template may give: aliases of YAML multiply them."""

MAX_DEPTH = 100


@dataclass
class Tree:
    """A value: a scalar, a dict[str, Tree] or a list[Tree]. The line is that of its key, if it has one."""

    line: int
    value: Any = None

    def get(self, *keys: str) -> Tree:
        """Returns the value below keys; one that is null if there is none."""
        tree = self
        for key in keys:
            tree = tree.value.get(key, Tree(self.line)) if isinstance(tree.value, dict) else Tree(self.line)
        return tree

    @property
    def is_null(self) -> bool:
        """Whether there is no value."""
        return self.value is None

    @property
    def items(self) -> list[Tree]:
        """The elements of a list; none of another value."""
        return self.value if isinstance(self.value, list) else []

    @property
    def text(self) -> str | None:
        """The value, if it is a text."""
        return self.value if isinstance(self.value, str) else None

    def plain(self) -> Any:
        """Returns the value as types of JSON, without keys that have no value."""
        if isinstance(self.value, dict):
            return {key: tree.plain() for key, tree in sorted(self.value.items()) if not tree.is_null}
        if isinstance(self.value, list):
            return [tree.plain() for tree in self.value]
        if isinstance(self.value, float) and self.value.is_integer():
            return int(self.value)
        return self.value

    def change_texts(self, change: Callable[[str, str], str], path: str = "") -> None:
        """Sets each text and key to what change returns for the path of keys to it, and for the text."""
        if isinstance(self.value, str):
            self.value = change(path, self.value)
        elif isinstance(self.value, list):
            for item in self.value:
                item.change_texts(change, path)
        elif isinstance(self.value, dict):
            self.value = {change(path, key): tree for key, tree in self.value.items()}
            for key, tree in self.value.items():
                tree.change_texts(change, f"{path}.{key}")

    def texts(self) -> list[tuple[str, str]]:
        """Returns each text and key, with the path of keys to it."""
        found: list[tuple[str, str]] = []

        def see(path: str, text: str) -> str:
            found.append((path, text))
            return text

        self.change_texts(see)
        return found


def read_documents(rendering: Rendering) -> list[Tree]:
    """Reads the documents of a rendered template, as PyYAML reads them for Enterprise Gateway's launcher."""
    reader = _Reader(rendering)
    try:
        docs = [reader.tree(node, None, 0) for node in yaml.compose_all(rendering.text, Loader=yaml.SafeLoader) if node]
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        line = rendering.line(mark.line + 1) if mark else 1
        raise MigrationError(f"{rendering.template.path}:{line}: what it gives is not YAML: {err.problem}") from err
    except (yaml.YAMLError, RecursionError) as err:
        raise MigrationError(f"{rendering.template.path}: what it gives is not YAML: {err}") from err
    return [doc for doc in docs if not doc.is_null]


class _Reader:
    def __init__(self, rendering: Rendering) -> None:
        self.rendering = rendering
        self.count = 0
        self.scalars = yaml.SafeLoader("")

    def tree(self, node: yaml.Node, line: int | None, depth: int) -> Tree:
        self.count += 1
        if self.count > MAX_VALUES or depth > MAX_DEPTH:
            raise MigrationError(f"{self.rendering.template.path}: it gives more than {MAX_VALUES} values, or more "
                                 f"than {MAX_DEPTH} within each other")
        own = self.rendering.line(node.start_mark.line + 1)
        tree = Tree(own if line is None else line)
        if isinstance(node, yaml.MappingNode):
            tree.value = {}
            for key, value in node.value:
                at = self.rendering.line(key.start_mark.line + 1)
                if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                    raise MigrationError(f"{self.rendering.template.path}:{at}: this kind of key is not read; write the "
                                         "keys out")
                tree.value[key.value] = self.tree(value, at, depth + 1)
        elif isinstance(node, yaml.SequenceNode):
            tree.value = [self.tree(item, None, depth + 1) for item in node.value]
        else:
            tree.value = self.scalar(node)
        return tree

    def scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag.rpartition(":")[2] in ("null", "bool", "int", "float"):
            try:
                value = self.scalars.construct_object(node)
                if value == value and value not in (float("inf"), float("-inf")):
                    return value
            except ValueError:
                pass  # a text, as in 09
        return node.value
