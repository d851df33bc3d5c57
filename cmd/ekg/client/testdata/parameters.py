"""Writes parameters.json: what papermill takes from texts. Run it with the python of hack/env/setup's folder lab."""

import json
from pathlib import Path

import yaml
from papermill.cli import _resolve_type
from papermill.iorw import NoDatesSafeLoader

TYPED = """True False None true null 7 -7 +7 007 -0 1_000 1__0 _1 9999999999999999999999999999999999 0x10 0o17 1.5 .5 5. . -.5
1e3 1E-7 1e400 -1e400 1_0.5 1._5 1e1_0 inf -inf Infinity nan NaN 2024-01-02 yes ~ [1] 1,5 e5 0b1 1e 1.5.2""".split() + [
    "",
    "a b",
    " 5 ",
    " 1.5 ",
    '"7"',
    "é",
]
SCALARS = """2024-01-02 2024-01-02T03:04:05Z 12:30 12:30:45 1:30.5 0:30 yes No ON off y n true True TRUE tRUE null Null ~ NULL None
7 -7 +7 0 00 07 017 08 0o17 0x1F 0xg 0b101 0b12 1_000 0x_1 99999999999999999999999999 -99999999999999999999 1.5 .5 5. 1e3 1.0e3
1.0e+3 1.5E-7 -1.5 +1.5 1_0.5 .inf -.inf +.INF .Inf .nan .NaN -.nan inf nan 1.0e+400 '7' "yes" !!str\xa07 !!int\xa0"7"
!!float\xa07 = a:b http://x 1.2.3 é""".replace("\n", " ").split(" ")
TEXTS = [f"x: {s.replace(chr(0xA0), ' ')}" for s in SCALARS] + [
    "x:",
    "",
    "# nothing",
    "null",
    "b: 1\na: 2\nb: 3",
    "{b: [1, {c: null}], a: {}}",
    '{"json": [1, 2.0, "x", null, true]}',
    "x: |\n  a\n  b\n",
    "x: >\n  a\n  b\n",
    "base: &b {k: 1, m: 2}\nx:\n  <<: *b\n  m: 3\n",
    "x: {<<: [{k: 1}, {k: 2, m: 3}], n: 4}",
    "x: {1: a, no: b, ~: c, 1.5: d, 0x10: e}",
    "1: a\nno: b",
    "x: &a [1]\ny: *a",
    "x: !!python/object:os.system 1",
]


def typed(text):
    return json.dumps(_resolve_type(text), ensure_ascii=False)


def loaded(text):
    try:
        value = yaml.load(text, Loader=NoDatesSafeLoader) or {}
    except yaml.YAMLError:
        return "error"
    names = {str(k): strings(v) for k, v in value.items()}
    return json.dumps(names, ensure_ascii=False)


def strings(value):
    """Returns a value whose keys are texts, as papermill's translators write them."""
    if isinstance(value, dict):
        return {str(k): strings(v) for k, v in value.items()}
    return [strings(v) for v in value] if isinstance(value, list) else value


table = {"typed": {t: typed(t) for t in TYPED}, "yaml": {t: loaded(t) for t in TEXTS}}
Path(__file__).with_name("parameters.json").write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")
