"""A pod template of Enterprise Gateway: Jinja2 parses it and evaluates its expressions.

The statements are walked here, so that each line of the result knows its line in the template, and so that values that
only a kernel's start gives stand in the text as marks. Only expressions are evaluated, in Jinja2's sandbox.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterator

from jinja2 import TemplateSyntaxError, Undefined, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import MigrationError

MAX_STEPS = 10_000
"""Bounds the parts that one rendering has. Nested loops over long lists exceed it; no pod needs them."""

NOT_READ = "is an expression that ekg does not read"
NOT_KNOWN = "is not known before a kernel starts"


class NotKnown(Exception):
    """The result depends on a value that only a kernel's start gives."""


class NotRead(Exception):
    """An operation on such a value has no counterpart in a kernelspec."""


@dataclass(eq=False)
class Runtime:
    """A value that is known only when a kernel starts. It is never empty."""

    name: str
    is_list: bool = False

    def __bool__(self) -> bool:
        return True

    def _unknown(self, *_: object) -> Any:
        raise NotKnown

    def _unread(self, *_: object) -> Any:
        raise NotRead

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __getitem__ = __iter__ = __contains__ = __len__ = __str__ = __repr__ = _unread  # type: ignore[assignment]


class Opaque(Runtime):
    """A variable of the template whose value is not known at all."""

    def __bool__(self) -> bool:
        raise NotKnown


@dataclass(frozen=True)
class Mark:
    """What a mark in a rendered text stands for: a variable, or something of which only the reason is known."""

    name: str = ""
    why: str = ""


@dataclass
class Marks:
    """The words that stand for values which are not known yet."""

    prefix: str
    all: list[Mark] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pattern = re.compile(re.escape(self.prefix) + r"(\d+)q")

    def word(self, mark: Mark) -> str:
        """Returns the word for a value."""
        if mark not in self.all:
            self.all.append(mark)
        return f"{self.prefix}{self.all.index(mark)}q"

    def of(self, word: re.Match[str]) -> Mark:
        """Returns the value for which a match of the pattern stands."""
        number = int(word[1])
        return self.all[number] if number < len(self.all) else Mark()

    def exactly(self, text: object) -> str:
        """Returns the variable for which a text stands, if the text is nothing else; "" for any other value."""
        match = self.pattern.fullmatch(text) if isinstance(text, str) else None
        return self.of(match).name if match else ""

    def readable(self, text: str) -> str:
        """Returns a text with the template's own words in place of marks."""
        return self.pattern.sub(lambda word: "{{ " + (self.of(word).name or "...") + " }}", text)


def flow_text(value: object) -> str:
    """Returns a value as JSON, which is YAML in flow style."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _environment() -> ImmutableSandboxedEnvironment:
    """Returns Jinja2 as Enterprise Gateway's launcher sets it up."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def yaml_safe(value: object) -> object:
        if isinstance(value, Undefined):
            raise NotKnown  # the launcher fails
        return json.dumps(value, ensure_ascii=False)

    def guarded(of: Callable[..., Any], keeps: bool) -> Callable[..., Any]:
        @functools.wraps(of)  # keeps the mark that says which context Jinja2 passes
        def run(*args: Any, **kwargs: Any) -> Any:
            unknown = [arg for arg in args if isinstance(arg, Runtime)]
            if unknown and keeps:
                return unknown[0]
            if unknown:
                raise NotRead
            return of(*args, **kwargs)

        return run

    env.filters["yaml_safe"] = env.filters["tojson"] = yaml_safe
    keep = {"yaml_safe", "tojson", "int", "string", "trim"}
    for name, filter_ in env.filters.items():
        if name not in ("default", "d"):
            env.filters[name] = guarded(filter_, keeps=name in keep)
    for name, test in env.tests.items():
        if name not in ("defined", "undefined", "none"):
            env.tests[name] = guarded(test, keeps=False)
    return env


class Template:
    """One template, which can be rendered for several values of its variables."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.env = _environment()
        try:
            self.root = self.env.parse(text)
            self._texts = self._tag_texts(text)
        except (TemplateSyntaxError, RecursionError) as err:
            line = getattr(err, "lineno", 1)
            raise MigrationError(f"{path}:{line}: {getattr(err, 'message', None) or err}") from err
        prefix = "zqx"
        while prefix in text:
            prefix += "x"
        self.marks = Marks(prefix)
        self.seen: set[int] = set()  # ids of text that a rendering has had
        self._compiled: dict[int, Any] = {}

    def _tag_texts(self, text: str) -> dict[int, str]:
        """Returns what each tag says, by the id of its node. Jinja2's nodes have only lines."""
        outputs: list[str] = []
        blocks: list[str] = []
        inside: list[str] | None = None
        for _, kind, value in self.env.lex(text):
            if kind in ("variable_begin", "block_begin"):
                inside = []
            elif kind in ("variable_end", "block_end") and inside is not None:
                said = "".join(inside).strip()
                if kind == "variable_end":
                    outputs.append(said)
                elif not re.match(r"(end\w*|else)\b", said):
                    blocks.append(said)
                inside = None
            elif inside is not None:
                inside.append(value)
        texts: dict[int, str] = {}
        output, block = iter(outputs), iter(blocks)
        for node in self.root.find_all(nodes.Stmt):
            if isinstance(node, nodes.Output):
                for part in node.nodes:
                    if not isinstance(part, nodes.TemplateData):
                        texts[id(part)] = next(output, "...")
            elif not isinstance(node, nodes.Scope):
                texts[id(node)] = next(block, "...")
        return texts

    def said(self, node: nodes.Node) -> str:
        """Returns what the tag of a node says, without the word of an if, a for or a set."""
        return re.sub(r"^(if|elif|for|set)\s+", "", self._texts.get(id(node), "..."))

    def names(self) -> list[str]:
        """Returns the names that the expressions use, in their order."""
        return list(dict.fromkeys(node.name for node in self.root.find_all(nodes.Name) if node.ctx == "load"))

    def data(self, within: nodes.Node | None = None) -> Iterator[nodes.TemplateData]:
        """Returns the text outside of tags."""
        return (within or self.root).find_all(nodes.TemplateData)

    def evaluate(self, expression: nodes.Expr, variables: dict[str, Any]) -> Any:
        """Returns the value of an expression. Raises NotKnown or NotRead."""
        compiled = self._compiled.get(id(expression))
        try:
            if compiled is None:
                assign = nodes.Assign(nodes.Name("ekg_value", "store"), expression, lineno=1)
                compiled = self.env.from_string(nodes.Template([assign], lineno=1))
                self._compiled[id(expression)] = compiled
            context = compiled.new_context(dict(variables))
            for _ in compiled.root_render_func(context):
                pass
            return context.vars["ekg_value"]
        except NotKnown:
            raise
        except Exception as err:  # the expression is the template's own, and may fail in any way
            raise NotRead from err


class Rendering:
    """The text of a template for some variables."""

    def __init__(self, template: Template, variables: dict[str, Any], note: Callable[[int, str], None]) -> None:
        self.template = template
        self.note = note  # is told what is left out
        self.pieces: list[str] = []
        self.lines = [0]  # of the template, by line of the text; 0 while a line is empty
        self.steps = 0
        self.render(template.root.body, dict(variables))

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)

    def line(self, rendered: int) -> int:
        """Returns the template's line of a line of the text."""
        return next((line for line in reversed(self.lines[:rendered]) if line), 1)

    def put(self, text: str, line: int) -> None:
        """Adds text that stands on a line of the template."""
        self.pieces.append(text)
        for i, part in enumerate(text.split("\n")):
            if i:
                self.lines.append(0)
            if part.strip() and not self.lines[-1]:
                self.lines[-1] = line + i

    def render(self, body: list[nodes.Node], variables: dict[str, Any]) -> None:
        """Adds statements."""
        for node in body:
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise MigrationError(f"{self.template.path}: it has loops over too many elements")
            if isinstance(node, nodes.Output):
                for part in node.nodes:
                    self.output(part, variables)
            elif isinstance(node, nodes.If):
                self.choose(node, variables)
            elif isinstance(node, nodes.For):
                self.loop(node, variables)
            elif isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name):
                self.assign(node, node.target.name, variables)
            else:
                self.note(node.lineno, f"{{% {self.template._texts.get(id(node), '...')} %}} is a tag that ekg "
                          "does not read")
                self.leave_out([node], node)

    def output(self, part: nodes.Expr, variables: dict[str, Any]) -> None:
        """Adds text, or the value of an expression."""
        if isinstance(part, nodes.TemplateData):
            self.template.seen.add(id(part))
            self.put(part.data, part.lineno)
            return
        marks, tag = self.template.marks, f"{{{{ {self.template.said(part)} }}}}"
        try:
            value = self.template.evaluate(part, variables)
            if isinstance(value, Opaque):
                raise NotKnown
            text = marks.word(Mark(value.name)) if isinstance(value, Runtime) else str(value)
        except NotKnown:
            text = marks.word(Mark(why=f"{tag} {NOT_KNOWN}"))
        except NotRead:
            text = marks.word(Mark(why=f"{tag} {NOT_READ}"))
        self.put(text, part.lineno)

    def assign(self, node: nodes.Assign, name: str, variables: dict[str, Any]) -> None:
        """Sets a variable."""
        variables[name] = Opaque(name)
        try:
            variables[name] = self.template.evaluate(node.node, variables)
        except NotKnown:
            pass  # what uses the variable is noted
        except NotRead:
            self.note(node.lineno, f"{{% set {name} %}} {NOT_READ}")

    def choose(self, node: nodes.If, variables: dict[str, Any]) -> None:
        """Adds the branch of an if that holds. If that is not known, no branch does."""
        for branch in [node, *node.elif_]:
            why = ""
            try:
                if self.template.evaluate(branch.test, variables):
                    self.render(branch.body, variables)
                    return
            except NotKnown:
                why = "depends on what is not known before a kernel starts"
            except NotRead:
                why = NOT_READ
            if why:
                self.note(branch.lineno, f"{{% if {self.template.said(branch)} %}} {why}")
                self.leave_out([node], node)
                return
        self.render(node.else_, variables)

    def loop(self, node: nodes.For, variables: dict[str, Any]) -> None:
        """Adds the body of a for for each element, and once for a list that a client gives."""
        items: list[Any] = []
        try:
            if node.test or node.recursive or not isinstance(node.target, nodes.Name):
                raise NotRead
            value = self.template.evaluate(node.iter, variables)
            if isinstance(value, Runtime):
                if not value.is_list:
                    raise NotRead
                items = [Runtime(value.name)]
            else:
                items = list(itertools.islice(iter(value), MAX_STEPS + 1))
        except (NotKnown, NotRead, TypeError):
            self.note(node.lineno, f"{{% for {self.template.said(node)} %}} is a loop that ekg does not read")
            self.leave_out([node], node)
            return
        for i, item in enumerate(items):
            place = {"index": i + 1, "index0": i, "first": i == 0, "last": i == len(items) - 1, "length": len(items)}
            inner = {**variables, "loop": Opaque("loop") if isinstance(item, Runtime) else place}
            inner[node.target.name] = item
            self.render(node.body, inner)
        if not items:
            self.render(node.else_, variables)

    def leave_out(self, body: list[nodes.Node], because: nodes.Node) -> None:
        """Names the lines of parts that are not rendered because of an enclosing one."""
        for node in body:
            for data in self.template.data(node):
                self.template.seen.add(id(data))
                for line, text in content(data):
                    self.note(line, f"{text}: depends on line {because.lineno}")


def content(data: nodes.TemplateData) -> Iterator[tuple[int, str]]:
    """Returns the lines of a text that are neither empty nor comments of YAML."""
    for i, part in enumerate(data.data.split("\n")):
        text = part.strip()
        if text and not text.startswith("#"):
            yield data.lineno + i, text
