"""Runs notebooks with papermill, and compares them with those that `ekg run` has written.

notebooks.py run DIR      reads DIR/in/*.ipynb, and DIR/parameters/*.yaml, and writes DIR/papermill
notebooks.py compare DIR  compares DIR/papermill with DIR/ekg: PASS or FAIL for each

Times, ids, versions and addresses in memory differ in each run. papermill writes one output for each piece of text;
the comparison joins them, as every front end does. It also upgrades the format, as papermill does.
"""

import json
import logging
import os
import re
import sys
from pathlib import Path

import nbformat
import papermill
from papermill.iorw import read_yaml_file

os.environ["JUPYTER_PLATFORM_DIRS"] = "1"
logging.disable(logging.WARNING)


def run(folder):
    out = folder / "papermill"
    out.mkdir()

    for path in sorted((folder / "in").iterdir()):
        given = folder / "parameters" / (path.name + ".yaml")
        for left in 2, 1, 0:  # another process may take a port of papermill's kernel, which then never answers
            try:
                papermill.execute_notebook(
                    str(path),
                    str(out / path.name),
                    parameters=read_yaml_file(str(given)) if given.exists() else None,
                    cwd=str(folder / "in"),
                    kernel_name="python3",
                    progress_bar=False,
                    autosave_cell_every=0,
                    execution_timeout=60,
                )
            except papermill.PapermillExecutionError:
                pass  # the notebook says so
            except (TimeoutError, RuntimeError):
                if not left:
                    raise
                continue
            break
    print("PASS papermill ran the notebooks")


TIMES = {"start_time", "end_time", "duration", "version", "input_path", "output_path"}


def plain(text):
    text = re.sub(r"0x[0-9a-f]{6,}", "0x", text)
    text = re.sub(r"ipykernel_\d+/\d+", "ipykernel", text)
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return re.sub(r"[0-9a-f]{32}", "ID", text)


def strings(value):
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [strings(v) for v in value]
    if isinstance(value, dict):
        return {plain(k): strings(v) for k, v in value.items()}
    return value


def without_times(metadata):
    return {k: None if k in TIMES and v is not None else v for k, v in metadata.items()}


def joined(outputs):
    result = []
    for output in outputs:
        last = result[-1] if result else {}
        if output["output_type"] == "stream" and last.get("name") == output["name"]:
            last["text"] += output["text"]
        else:
            result.append(output)
    return result


def comparable(path):
    notebook = nbformat.v4.rwbase.strip_transient(nbformat.v4.upgrade(nbformat.read(path, 4)))
    if notebook.metadata.get("kernelspec") != {"language": "python"}:  # as Output.ipynb of nbclient, which is not valid
        nbformat.validate(notebook)
    notebook = json.loads(json.dumps(notebook))
    notebook["metadata"]["papermill"] = without_times(notebook["metadata"]["papermill"])
    widgets = notebook["metadata"].pop("widgets", None)
    if widgets:
        state = widgets["application/vnd.jupyter.widget-state+json"]["state"]
        for model in state.values():
            if "outputs" in model["state"]:
                model["state"]["outputs"] = joined(model["state"]["outputs"])
        notebook["metadata"]["widgets"] = sorted((strings(m) for m in state.values()), key=json.dumps)
    for cell in notebook["cells"]:
        cell.pop("id", None)
        cell["metadata"]["papermill"] = without_times(cell["metadata"].get("papermill", {}))
        if "execution" in cell["metadata"]:
            cell["metadata"]["execution"] = sorted(cell["metadata"]["execution"])
        if "outputs" in cell:
            cell["outputs"] = joined(cell["outputs"])
    return strings(notebook)


def difference(ours, theirs, where=""):
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            if key not in ours or key not in theirs:
                return f"{where}.{key} is only in {'ekg' if key in ours else 'papermill'}'s"
            if found := difference(ours[key], theirs[key], f"{where}.{key}"):
                return found
        return None
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, pair in enumerate(zip(ours, theirs)):
            if found := difference(*pair, f"{where}[{i}]"):
                return found
        return None
    return None if ours == theirs or repr(ours) == repr(theirs) else f"{where}: {ours!r} is not {theirs!r}"


def compare(folder):
    for path in sorted((folder / "papermill").iterdir()):
        found = difference(comparable(folder / "ekg" / path.name), comparable(path))
        print(f"FAIL {path.name}: {found}".replace("\n", " ") if found else f"PASS {path.name}")


{"run": run, "compare": compare}[sys.argv[1]](Path(sys.argv[2]))
