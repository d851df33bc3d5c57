"""Reads the settings of Enterprise Gateway: a command line, variables, and configuration files in Python or JSON."""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Iterator

import yaml

from .errors import MigrationError, UsageError
from .files import read_small

IN_ENVIRONMENT, IN_FILE, ON_COMMAND_LINE = range(3)
"""The precedence of sources in Enterprise Gateway. A higher one counts."""

TABLE: dict[str, Any] = json.loads(resources.files(__package__).joinpath("enterprise", "options.json").read_text("utf-8"))

VARIABLE_LINE = re.compile(r"(export )?[A-Za-z_][A-Za-z0-9_]*=")
SERVICE_VARIABLE = re.compile(r"EG_(.*_)?(SERVICE_(HOST|PORT.*)|PORT_\d+_(TCP|UDP).*|PORT)")
"""Matches what Kubernetes sets beside a service whose name begins with eg."""

NOT_CONSTANT = "the value is not a constant; Python is not executed"


@dataclass
class Value:
    """A constant of an option, as texts."""

    texts: list[str] = field(default_factory=list)
    is_list: bool = False
    is_none: bool = False  # Python's None, or JSON's null


@dataclass
class Given:
    """One assignment of an option."""

    option: dict[str, Any]  # of TABLE
    name: str  # as it was written: Class.trait, or the variable
    place: str  # file:line, or the command line
    rank: int
    value: Value

    @property
    def setting(self) -> str:
        """The setting of ekg; "" if the option has no counterpart."""
        return "" if "why" in self.option or "reason" in self.option else self.option["setting"]

    @property
    def is_unset(self) -> bool:
        """Whether this is the same as no assignment."""
        return self.value.is_none or self.value.texts in ([], [""])

    def same_setting(self, other: Given) -> bool:
        """Reports whether both set the same. The option of all other traits stands for several settings."""
        return self.option is other.option and (self.name == other.name or "*" not in self.option.get("traits", ()))


class Import:
    """What was read of Enterprise Gateway's settings."""

    def __init__(self) -> None:
        self.given: list[Given] = []
        self.unread: list[str] = []  # place: reason; without contents, which may be secret

    def read_arguments(self, args: list[str]) -> None:
        """Reads files, Enterprise Gateway's options, and NAME=VALUE. "-" is a list of variables on stdin."""
        rest = list(args)
        while rest:
            arg = rest.pop(0)
            if arg == "-":
                self._variables(sys.stdin.read(), "-")
            elif arg.startswith("-"):
                self._flag(arg.lstrip("-"), rest)
            elif VARIABLE_LINE.match(arg) and "." not in arg.partition("=")[0]:
                self._variable(arg, "environment")
            else:
                self._file(arg)

    def chosen(self) -> tuple[list[Given], list[Given]]:
        """Returns the assignments that count, in the order of the table, and those that others override."""
        counts: list[Given] = []
        overridden: list[Given] = []
        for one in self.given:
            other = next((other for other in counts if one.same_setting(other)), None)
            if other is None:
                counts.append(one)
            elif one.rank >= other.rank:
                overridden.append(other)
                counts[counts.index(other)] = one
            else:
                overridden.append(one)
        order = {id(option): i for i, option in enumerate(TABLE["options"])}
        return sorted(counts, key=lambda g: order[id(g.option)]), sorted(overridden, key=lambda g: g.name)

    def token(self) -> str:
        """Returns the given token; "" if there is none."""
        return next((one.value.texts[0] for one in self.chosen()[0]
                     if one.setting == "token" and not one.is_unset and not one.value.is_list), "")

    def _assign(self, name: str, place: str, rank: int, value: Value) -> None:
        option = _option_of(name)
        if option is None:
            self.unread.append(f"{place}: {name} is not an option of Enterprise Gateway 3.3")
            return
        self.given.append(Given(option, name, "command line" if place.lstrip("-") == name else place, rank, value))

    def _flag(self, text: str, rest: list[str]) -> None:
        """Reads one option of the command line, and takes its value from the rest."""
        name, is_given, value = text.partition("=")
        if name in TABLE["toggles"]:
            if TABLE["toggles"][name]:
                self._assign(TABLE["toggles"][name], f"--{name}", ON_COMMAND_LINE, Value(["DEBUG"]))
            return
        if not is_given:
            if not rest or rest[0].startswith("-"):
                raise UsageError(f"--{name}: a value is missing")
            value = rest.pop(0)
        if name == "config" or name.endswith(".config_file"):
            self._file(value)
            return
        full = TABLE["aliases"].get(name, name)
        option = _option_of(full)
        if option is None:
            raise UsageError(f"--{name}: is not an option of Enterprise Gateway 3.3")
        read = Value([value], is_list=bool(option.get("list")))
        if value[:1] in ("[", "(", "{"):
            try:
                read = _constant(ast.parse(value, mode="eval").body)
            except (SyntaxError, ValueError) as err:
                self.unread.append(f"--{name}: {NOT_CONSTANT if isinstance(err, SyntaxError) else err}")
                return
        elif read.is_list:  # a list is given as one option for each of its entries
            for one in self.given:
                if one.rank == ON_COMMAND_LINE and one.option is option and one.value.is_list:
                    one.value.texts.append(value)
                    return
        self._assign(full, f"--{name}", ON_COMMAND_LINE, read)

    def _file(self, name: str) -> None:
        path = Path(name)
        try:
            text = read_small(path)
            if path.suffix == ".py":
                self._python(text, name)
            elif path.suffix == ".json":
                self._json(text, name)
            else:
                self._variables(text, name)
        except MigrationError as err:
            raise UsageError(str(err)) from err

    def _variables(self, text: str, name: str) -> None:
        for i, line in enumerate(text.split("\n")):
            self._variable(line.strip(), f"{name}:{i + 1}")

    def _variable(self, line: str, place: str) -> None:
        """Reads NAME=VALUE. Variables that are not Enterprise Gateway's are ignored."""
        name, is_given, value = re.sub(r"^export ", "", line).partition("=")
        if not name.startswith(("EG_", "KG_")):
            return
        if not is_given:
            self.unread.append(f"{place}: is not NAME=VALUE")
            return
        if len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]:
            value = value[1:-1]
        option = next((option for option in TABLE["options"] if name in option.get("variables", ())), None)
        if option is None:
            if value and not SERVICE_VARIABLE.fullmatch(name):
                self.unread.append(f"{place}: {name} is not a variable of Enterprise Gateway 3.3")
            return
        # Enterprise Gateway reads the first two as its default. Kubernetes sets the third beside a service named "eg".
        if not value or value == "null" and option.get("list") or name == "EG_PORT" and value.startswith("tcp://"):
            return
        read = Value([value])
        if option.get("list"):
            texts = [text.strip(" '\"") for text in value.strip("[]").split(",")]
            read = Value([text for text in texts if text], is_list=True)
        self.given.append(Given(option, name, place, IN_ENVIRONMENT, read))

    def _json(self, text: str, name: str) -> None:
        """Reads a configuration in JSON, which is YAML as well. So the lines are known."""
        try:
            json.loads(text)
            root = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
        except json.JSONDecodeError as err:  # its text may show a value
            raise MigrationError(f"{name}:{err.lineno}: is not JSON") from err
        except (yaml.YAMLError, RecursionError) as err:
            raise MigrationError(f"{name}: is not JSON") from err
        if not isinstance(root, yaml.MappingNode):
            raise MigrationError(f"{name}: is not an object")
        for class_, traits in root.value:
            if not isinstance(traits, yaml.MappingNode):
                if class_.value != "version":
                    self.unread.append(f"{name}:{class_.start_mark.line + 1}: {class_.value} is not an object")
                continue
            for trait, value in traits.value:
                full, place = f"{class_.value}.{trait.value}", f"{name}:{trait.start_mark.line + 1}"
                items = value.value if isinstance(value, yaml.SequenceNode) else [value]
                if isinstance(value, yaml.MappingNode):
                    self.unread.append(f"{place}: {full} is not a constant or a list")
                elif not all(isinstance(item, yaml.ScalarNode) for item in items):
                    self.unread.append(f"{place}: {full} is not a list of constants")
                else:
                    read = Value([item.value for item in items], items is value.value, value.tag.endswith(":null"))
                    self._assign(full, place, IN_FILE, read)

    def _python(self, text: str, name: str) -> None:
        """Reads assignments of constants. Reports everything else with its line, and without its contents."""
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
            line = getattr(err, "lineno", None) or 1
            raise MigrationError(f"{name}:{line}: is not Python: {getattr(err, 'msg', 'cannot be parsed')}") from err
        for statement in body:
            self._statement(statement, name, in_block=False)

    def _statement(self, statement: ast.stmt, name: str, in_block: bool) -> None:
        place = f"{name}:{statement.lineno}"
        traits = [trait for part in _changed(statement) for trait in _traits(part)]
        if traits and in_block:
            self.unread.append(f"{place}: {traits[0]} stands in a block, which may not be executed")
        elif isinstance(statement, ast.Assign) and all(_trait(target) for target in statement.targets):
            for trait in traits:
                try:
                    self._assign(trait, place, IN_FILE, _constant(statement.value))
                except ValueError as err:
                    self.unread.append(f"{place}: {trait}: {err}")
        elif traits:
            self.unread.append(f"{place}: {traits[0]} is changed, and not assigned a constant")
        elif not _is_harmless(statement):
            self.unread.append(f"{place}: is not an assignment of a constant")
        for inner in _inner(statement):
            self._statement(inner, name, in_block=True)


def _option_of(name: str) -> dict[str, Any] | None:
    """Returns the option of Class.trait."""
    class_, _, trait = name.partition(".")
    for option in TABLE["options"]:
        traits = option.get("traits", ())
        if class_ in TABLE["classes"].get(option.get("group"), ()) and (trait in traits or "*" in traits):
            return option
    return None


def _inner(node: ast.AST) -> Iterator[ast.stmt]:
    """Returns the statements in the blocks of a statement."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif not isinstance(child, ast.expr):
            yield from _inner(child)  # as those of an except


def _changed(statement: ast.stmt) -> list[ast.expr]:
    """Returns the expressions with which a statement may change a trait."""
    if isinstance(statement, (ast.Assign, ast.Delete)):
        return statement.targets
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        return [statement.target]
    return [statement.value] if isinstance(statement, ast.Expr) else []


def _trait(node: ast.AST) -> str:
    """Returns Class.trait if the node is c.Class.trait, else ""."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and isinstance(
            node.value.value, ast.Name) and node.value.value.id == "c":
        return f"{node.value.attr}.{node.attr}"
    return ""


def _traits(part: ast.expr) -> list[str]:
    """Returns all Class.trait in an expression."""
    return [trait for trait in map(_trait, ast.walk(part)) if trait]


def _is_harmless(statement: ast.stmt) -> bool:
    """Reports whether a statement is one of each generated configuration, or a text that only documents."""
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
        call = statement.value.func
        return isinstance(call, ast.Name) and call.id == "get_config"
    documents = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return documents or isinstance(statement, (ast.Import, ast.ImportFrom, ast.Pass))


def _constant(node: ast.expr) -> Value:
    """Returns the value of a constant of Python, or of a list, a tuple or a set of them. Raises ValueError."""
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        items = [_constant(item) for item in node.elts]
        if any(item.is_list or item.is_none for item in items):
            raise ValueError("the value is not a list of texts and numbers")
        return Value([item.texts[0] for item in items], is_list=True)
    if isinstance(node, ast.Call) and ast.unparse(node) == "set()":
        return Value(is_list=True)
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        value = getattr(node.operand, "value", None)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return Value([str(-value if isinstance(node.op, ast.USub) else value)])
    elif isinstance(node, ast.Constant):
        if value is None:
            return Value([""], is_none=True)
        if isinstance(value, bool):
            return Value([str(value).lower()])
        if isinstance(value, (str, int, float)):
            return Value([str(value)])
    raise ValueError(NOT_CONSTANT)
