"""Templates are rendered as Jinja2 renders them, and values that are not known stay apart."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from ekg_migrate.errors import MigrationError
from ekg_migrate.podtemplate import PodTemplate
from ekg_migrate.template import NotKnown, NotRead, Rendering, Runtime, Template


def rendered(text, variables):
    """Renders a template of which nothing may be left out."""

    def note(line, message):
        raise AssertionError(f"{line}: {message}")

    return Rendering(Template(Path("t"), text), variables, note).text


@pytest.mark.parametrize("text", [
    "a\n  {% if t %}\n  b\n  {% endif %}\nc", "a: {% if t %}b{% endif %}\nc", "a\n  {{ t }}\n",
    "a\n  {%- if t %} b{% endif %}", "a\n  {%+ if t %}b{% endif %}", "{% if t +%}\nb{% endif %}",
    "{% if t -%}\n\n  b{% endif %}", "x\n  {# a\n '}} #}\n  y", "x {#- a -#}\n  y", "x {{- t -}}\n  y",
    "# c\n{% for v in l %}\t{% for w in m or [] %}{{ w }}\n{% endfor %}# d\n{% endfor %}", "{{ '}}' }}{{ \"{%\" }}",
    "{% if u %}1{% elif t %}2{% else %}3{% endif %}", "{% for v in [] %}a{% else %}b{% endfor %}",
    "{% for v in l %}{{ loop.index }}{{ v | upper }}{% endfor %}", "{% set x = t ~ 'y' %}{{ x }}",
    "{% if t %}{% set x = 1 %}{% endif %}{{ x }}{% for v in l %}{% set x = 2 %}{% endfor %}{{ x }}",
    "{% raw %}{{ t }}{% endraw %}",
])
def test_as_jinja(text):
    """The text is the same as Jinja2's, with the options of Enterprise Gateway's launcher."""
    variables = {"t": "T", "l": ["x", "y"]}
    want = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(text).render(variables)
    assert rendered(text, variables) == want


@pytest.mark.parametrize("expression, want", [
    ("run == 'b'", NotKnown), ("run and 'y'", "y"), ("run or 'y'", "run"), ("run | default('d', true)", "run"),
    ("run | int", "run"), ("run | yaml_safe", "run"), ("run is defined and text", "b"), ("empty | default('d')", ""),
    ("text | yaml_safe", '"b"'), ("missing | yaml_safe", NotKnown), ("missing | int", NotRead), ("text.upper()", "B"),
    ("run | lower", NotRead), ("run[:3]", NotRead), ("run ~ 'x'", NotRead), ("run.upper()", NotRead),
    ("run | replace('a', 'b')", NotRead), ("'a' in run", NotRead), ("run + 'x'", NotRead), ("[run] | join", NotRead),
    ("'%s' % run", NotRead), ("run is odd", NotRead), ("'x' | replace('x', run)", NotRead), ("missing.x.y", NotRead),
    ("text.__class__.__mro__", NotRead), ("{'a': run} | tojson", NotRead),
])
def test_unknown(expression, want):
    """A value that is known only when a kernel starts is never read as a text."""
    template = Template(Path("t"), "{{ " + expression + " }}")
    part = template.root.body[0].nodes[0]
    try:
        got = template.evaluate(part, {"text": "b", "empty": "", "run": Runtime("run")})
        got = got.name if isinstance(got, Runtime) else got
    except (NotKnown, NotRead) as err:
        got = type(err)
    assert got == want


def test_lines():
    """Each finding is on a line of the template, whatever the tags around it do with white space."""
    text = ("kind: Pod\n{# a\n b #}\nspec:\n{% if kernel_x -%}\n\n  x: 1\n{% endif %}\n{% for v in kernel_x[1:] %}\n"
            "{% macro m() %}\n  hidden: 1\n{% endmacro %}\n{% endfor %}\n")
    pod = PodTemplate(Path("t"), text, {})
    pod.units()
    assert sorted((finding.line, finding.message) for finding in pod.findings) == [
        (7, "x: depends on KERNEL_X of the client, which ekg does not apply here"),
        (9, "{% for v in kernel_x[1:] %} is a loop that ekg does not read"),
        (11, "hidden: 1: depends on line 9"),
    ]


def test_hostile():
    """A template cannot use up the machine, nor reach Python."""
    for text in ("{% for a in range(100000) %}x{% endfor %}", "a: &a [*a]", "x: " + "[" * 5000):
        with pytest.raises(MigrationError):
            PodTemplate(Path("t"), "kind: Pod\n" + text, {}).units()
