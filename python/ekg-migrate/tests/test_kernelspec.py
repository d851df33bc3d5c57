"""Kernelspecs are converted as ekg's own command did before: the data has its outputs. The program ekg is in PATH."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from conftest import DATA, KERNEL_JSON, POD

SPECS = sorted(path.name for path in (DATA / "convert").iterdir())
LEFT_OUT = json.loads((DATA / "left_out.json").read_text())


@pytest.mark.parametrize("name", SPECS)
def test_golden(name, run, monkeypatch):
    """The template of the release and edited ones. An end to end test compares the pods with Enterprise Gateway's."""
    monkeypatch.chdir(DATA)
    code, out, err = run("kernelspec", "--dry-run", f"convert/{name}")
    assert out == Path(f"convert/{name}/want.json").read_text()
    assert err == Path(f"convert/{name}/want.stderr").read_text()
    assert code == (3 if "left out: " in err else 0)


@pytest.mark.parametrize("case", LEFT_OUT, ids=lambda case: case["name"])
def test_left_out(case, run, spec):
    """A line without a counterpart is reported once. All other lines are converted."""
    folder = spec("\n".join(case["template"]))
    code, out, err = run("kernelspec", "--dry-run", folder)
    begin = f"left out: {folder}/scripts/kernel-pod.yaml.j2:"
    found = [line[len(begin):] for line in err.split("\n") if line.startswith(begin)]
    assert found == case["left_out"]
    assert json.loads(out)["metadata"]["ekg"] == case["ekg"]
    assert code == (3 if found else 0)


LOOPS = "{% for a in [1,2,3,4,5,6,7,8,9,10] %}" * 6 + "x" + "{% endfor %}" * 6
ALIASES = (POD + "  a: &a [x,x,x,x,x,x,x,x,x,x]\n  b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n  c: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
           "  d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\n  e: [*d,*d,*d,*d,*d,*d,*d]\n")


@pytest.mark.parametrize("kernel_json, template, want", [
    ("{", POD, "kernel.json:1: is not JSON"),
    ("[]", POD, "kernel.json: is not an object"),
    (KERNEL_JSON.replace('["python"', '[3, "python"'), POD, "kernel.json:1: argv: has values that are no texts"),
    (KERNEL_JSON.replace('"metadata": {', '"metadata": {"ekg": {}, '), POD, "kernel.json:2: it has metadata.ekg already"),
    (KERNEL_JSON.replace("response_address", "connection_file"), POD, "it starts no launcher of Enterprise Gateway"),
    (KERNEL_JSON.replace("KubernetesProcess", "DockerProcess"), POD, "starts no pod from a template"),
    (KERNEL_JSON.replace("launch_kubernetes.py", "/k/bin/run.sh"), POD, "submits a Spark application"),
    (KERNEL_JSON.replace('"language": "python"', '"language": "scala"'), POD,
     '"scala"; give it with --command, or use --keep-launcher'),
    (KERNEL_JSON.replace('"display_name"', '"display"'), POD, "kernel.json:2: display: is not a key of kernel.json"),
    (KERNEL_JSON.replace('"language"', '"env": {"KERNEL_VOLUMES": "{"}, "language"'), POD,
     "env.KERNEL_VOLUMES is not a list in YAML"),
    (KERNEL_JSON, "kind: Service\n", "it gives no object of the kind Pod"),
    (KERNEL_JSON, POD + "  a: b\n  c: d: e\n", "kernel-pod.yaml.j2:5: what it gives is not YAML: "),
    (KERNEL_JSON, POD + "  ? [a]\n  : b\n", "kernel-pod.yaml.j2:4: this kind of key is not read"),
    (KERNEL_JSON, POD + "{% if a %}\n", "kernel-pod.yaml.j2:4: Unexpected end of template."),
    (KERNEL_JSON, POD + "\n{% endfor %}\n", "kernel-pod.yaml.j2:5: Encountered unknown tag 'endfor'"),
    (KERNEL_JSON, POD + "{{ a\n", "kernel-pod.yaml.j2:4: unexpected end of template"),
    (KERNEL_JSON, LOOPS, "loops over too many elements"),
    (KERNEL_JSON, ALIASES, "it gives more than 20000 values"),
    (KERNEL_JSON, None, "scripts/kernel-pod.yaml.j2: no such file or directory"),
])
def test_errors(kernel_json, template, want, run, spec):
    """Kernelspecs that cannot be converted at all have an error that says where and why."""
    folder = spec(template, kernel_json)
    code, out, err = run("kernelspec", "--dry-run", folder)
    assert (code, out) == (1, "")
    assert want in err and f"{folder}: not converted: " in err
    assert err.endswith("ekg-migrate: kernelspecs that were not converted: 1 of 1\n")


def test_keep_launcher(run, spec):
    """A kernelspec that keeps the launcher keeps its argv, in every language."""
    folder = spec(POD, KERNEL_JSON.replace('"language": "python"', '"language": "scala"'))
    code, out, _ = run("kernelspec", "--dry-run", "--keep-launcher", folder)
    assert code == 0 and "{response_address}" in out


def test_output(run, copied, tmp_path):
    """A kernelspec is written into a new folder with its logo. Files that exist are replaced with --force only."""
    folder, new = copied("gpu"), tmp_path / "new"
    want = (folder / "want.json").read_text()
    code, out, err = run("kernelspec", "--output", new, folder)
    assert (code, out) == (0, "") and err.endswith(f"converted: {folder}; lines without a counterpart: 0\n")
    assert (new / "gpu/kernel.json").read_text() == want
    assert sorted(file.name for file in (new / "gpu").iterdir()) == ["kernel.json", "logo-64x64.png"]
    (new / "gpu/kernel.json").write_text("mine")
    code, _, err = run("kernelspec", "--output", new, folder)
    assert code == 1 and "--force replaces" in err and (new / "gpu/kernel.json").read_text() == "mine"
    assert run("kernelspec", "--force", "--output", new, folder)[0] == 0
    assert (new / "gpu/kernel.json").read_text() == want
    code, _, err = run("kernelspec", "--force", "--output", folder.parent, folder)
    assert code == 1 and "is the kernelspec itself" in err


def test_policy(run, tmp_path):
    """What only the operator's policy refuses is a note."""
    note = "the policy refuses metadata.ekg.env[2].valueFrom.secretKeyRef.name"
    policy = tmp_path / "policy.yaml"
    policy.write_text("kernelspecs: {secrets: [object-store]}\n")
    assert note in run("kernelspec", "--dry-run", DATA / "convert/homes")[2]
    code, _, err = run("kernelspec", "--dry-run", "--kube-policy", policy, DATA / "convert/homes")
    assert code == 3 and note not in err
    policy.write_text("kernelspec: {}\n")
    code, _, err = run("kernelspec", "--dry-run", "--kube-policy", policy, DATA / "convert/homes")
    assert code == 2 and f"{policy}:1: " in err


@pytest.mark.parametrize("args, code, want", [
    (["--dry-run"], 2, "DIR"),
    (["gpu"], 2, "one of the arguments --output --dry-run --chart is required"),
    (["--dry-run", "--chart", "gpu"], 2, "not allowed with argument"),
    (["--dry-run", "--command", "bash", "gpu"], 2, "is not a list of texts in JSON"),
    (["--dry-run", "--command", '["bash"]', "--keep-launcher", "gpu"], 2, "not allowed with argument"),
    (["--dry-run", "--ekg", "/nowhere/ekg", "gpu"], 2, "/nowhere/ekg cannot be run: No such file or directory; --ekg names"),
    (["--dry-run", "gpu/scripts"], 1, "has no kernel.json, and no folder with one"),
    (["--dry-run", "--template", "/nowhere", "gpu"], 1, "/nowhere: no such file or directory"),
    (["--dry-run", "--command", '["bash", "{connection_file}"]', "gpu"], 0, ""),
])
def test_command_line(args, code, want, run, monkeypatch):
    """A wrong command line has exit status 2, and what cannot be read 1."""
    monkeypatch.chdir(DATA / "convert")
    got, out, err = run("kernelspec", *args)
    assert got == code and want in err
    assert (code == 0) == ('"bash"' in out)


def test_one_fails(run, spec):
    """A kernelspec that cannot be converted does not keep the others from it."""
    folder = spec(POD, KERNEL_JSON.replace("response_address", "connection_file"))
    code, out, err = run("kernelspec", "--dry-run", DATA / "convert/gpu", folder)
    assert code == 1 and out == (DATA / "convert/gpu/want.json").read_text()
    assert err.endswith("kernelspecs that were not converted: 1 of 2\n")


def test_chart(run, copied, monkeypatch):
    """Values for the chart have all kernelspecs, and none of its examples. A test of the chart renders the file."""
    monkeypatch.chdir(DATA)
    code, out, _ = run("kernelspec", "--chart", "convert")
    assert code == 3 and out == Path("specs.yaml").read_text()
    specs = yaml.safe_load(out)["kernelspecs"]["specs"]
    assert specs.pop("python3") is None and specs.pop("python3-gpu") is None
    assert specs == {name: json.loads(Path(f"convert/{name}/want.json").read_text()) for name in SPECS}
    gpu = copied("gpu")
    code, out, err = run("kernelspec", "--chart", gpu, copied("gpu", "GPU"))
    assert code == 1 and "\n    gpu:\n" in out and "GPU: not converted: there is a kernelspec gpu already" in err
    assert f"note: {gpu}: values of the chart have no files, so these are left out: logo-64x64.png\n" in err
    shutil.rmtree(gpu / "scripts")
    assert run("kernelspec", "--chart", gpu)[:2] == (1, "")
