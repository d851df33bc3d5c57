"""Writes translated.json: how papermill writes parameters. Run it with the python of hack/env/setup's folder lab."""

import json
from pathlib import Path

from papermill.translators import papermill_translators as translators

VALUES = """null true false 0 -0 -3 2147483647 2147483648 -2147483649 9223372036854775808 123456789012345678901234567890
1.0 -0.0 1.5 1e3 1e15 1e16 1e22 1.0e-4 1.0e-5 2.5e-7 1e400 -1e400 123456789.123456789 0.1 5e-324 1.7976931348623157e308
"" "a" "it's" "a\\"b" "a\\\\b" "\\n\\r\\t\\u0000\\u007f" "é" "€" "😀" "$x" "\\u2028" [] [1,"a",[true,null,1.5]] {} {"k":1}
{"k":{"a":[1,{"b":null}]},"its":"x"} {"é":1} {"a\\"b":"c"} [[],{}] [1e400]""".split()
LANGUAGES = ["python", "R", "julia", "scala", "matlab", ".net-csharp", ".net-fsharp", ".net-powershell", "bash"]


def written(language, text):
    try:
        return translators.find_translator("", language).codify({"x": json.loads(text)})
    except NotImplementedError:
        return "error"


table = {name: {v: written(name, v) for v in VALUES} for name in LANGUAGES}
Path(__file__).with_name("translated.json").write_text(json.dumps(table, indent=1, ensure_ascii=True) + "\n")
