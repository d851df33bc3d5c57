"""Settings are translated as ekg's own command did before: the data has its outputs. Tests of ekg load them."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
import yaml
from conftest import DATA

from ekg_migrate.config import TABLE, Import
from ekg_migrate.settings import Output

NAMES = [name for name in (DATA / "options.txt").read_text().split() if not name.endswith(".config_file")]
ALL = [f"--{name}=1" if "." in name else f"{name}=1" for name in NAMES]


def translate(*args, token_file="", chart=False):
    """Returns the file for some arguments."""
    found = Import()
    found.read_arguments(list(args))
    text = Output(token_file, chart).write(found)
    assert "hunter" not in text, "a secret is written"
    return text


@pytest.mark.parametrize("golden, args, more", [
    ("python.yaml", ["config.py"], {}),
    ("json.yaml", ["config.json"], {"token_file": "/etc/ekg/token"}),
    ("chart.yaml", ["chart.env"], {}),
    ("precedence.yaml", ["--ip=10.0.0.1", "--config", "config.py", "EG_IP=10.0.0.2", "EG_KERNEL_IMAGE=k:1",
                         "--EnterpriseGatewayApp.inherited_envs=A", "--EnterpriseGatewayApp.inherited_envs=B",
                         "--EnterpriseGatewayApp.client_envs=['C', 'D']", "--debug",
                         "--RemoteMappingKernelManager.cull_interval", "5"], {}),
    ("nothing.yaml", ["HOME=/root"], {}),
    ("all.yaml", ALL, {}),
    ("values.yaml", ["chart.env", "EG_CERTFILE=/a.pem", "EG_KEYFILE=/a.key"], {"chart": True}),
    ("values-nothing.yaml", ["HOME=/root", "EG_PORT=http"], {"chart": True}),
    ("all-values.yaml", ALL, {"chart": True}),
])
def test_golden(golden, args, more, monkeypatch):
    """Outputs for files, options and variables."""
    monkeypatch.chdir(DATA)
    assert translate(*args, **more) == Path(golden).read_text()


@pytest.mark.parametrize("name, arg", list(zip(NAMES, ALL)))
def test_knows_all_options(name, arg):
    """Each option of Enterprise Gateway 3.3.0 is translated, or has a reason.

    The list is from its --help-all, its classes and the variables in its sources.
    """
    got = translate(arg)
    assert "# Not read:" not in got and name in got


OTHER_NAMES = {
    "env_whitelist": "client_envs", "env_process_whitelist": "inherited_envs", "ws_ping_interval_secs": "ws_ping_interval",
    "allowed_kernels": "whitelist", "kernel_whitelist": "whitelist", "allowed_kernelspecs": "whitelist",
    "kernel_session_persistence": "enable_persistence", "kernelspec_cache_enabled": "cache_enabled",
}
MERGED = ("client_envs", "inherited_envs", "authorized_users", "unauthorized_users", "whitelist")


def test_all_at_once():
    """One file with all options says of each whether it counts.

    A name is overridden only if another name of the same setting counts, so each setting has its reason.
    """
    head, _, rest = translate(*ALL).partition("# Overridden in Enterprise Gateway, too:\n")
    overridden, _, without = rest.partition("# Without a counterpart:\n")

    def setting(name):
        trait = name.partition(".")[2] or name[len("EG_"):].lower()
        return OTHER_NAMES.get(trait, trait)

    def has(section, name):
        return re.search(rf"(?m): {name}($|[:,;]| is a secret)", section) is not None

    counts = {setting(name) for name in NAMES if has(head + without, name)}
    for name in NAMES:
        assert setting(name) in counts
        if setting(name) not in MERGED:  # each option of a command line adds an entry; only the first is named
            assert has(overridden, name) != has(head + without, name), name


@pytest.mark.parametrize("value, want", [
    ("0", "policy.clients.userIDs of the chart, is [1-2147483647] unless it is set"),
    ("0,500", "policy.clients.userIDs of the chart, must be [1-499, 501-2147483647]."),
    (" 500, 0,2,2", "must be [1, 3-499, 501-2147483647]."),
    ("1000", "must be [0-999, 1001-2147483647]."),
    ("0,2147483647", "must be [1-2147483646]."),
    ("root", "the prohibited ones are not a list of numbers here"),
    ("0,99999999999,-1", "is [1-2147483647] unless it is set"),
])
def test_prohibited(value, want):
    """The reason of prohibited ids has the ranges that the policy needs."""
    got = translate(f"EG_PROHIBITED_UIDS={value}")
    assert want in got and "root" not in got


def test_explanations():
    """Other reasons that depend on the value."""
    got = translate("EG_PROHIBITED_GIDS=0", "EG_ALLOWED_KERNELS=null", "EG_DEFAULT_KERNEL_SERVICE_ACCOUNT_NAME=team")
    assert "clients.groupIDs" in got and "kernels have the account default unless" in got
    assert "allowed-kernelspec" not in got and "Overridden" not in got


APP = "c.EnterpriseGatewayApp"


@pytest.mark.parametrize("text, want", [
    (f"{APP}.base_url = ('/a'\n  \"/b\")", "base-url: /a/b "),
    (APP + r".base_url = '\x2fa\'b'", "base-url: /a'b "),
    (APP + r".base_url = r'/a\b'", r"base-url: /a\b "),
    (f"{APP}.client_envs = ('A',)", "client-env: [A] "),
    (f"{APP}.port = 1\n{APP}.port = 2", "listen: 127.0.0.1:2 "),
    (f"{APP}.port = 1; x()", "listen: 127.0.0.1:1 "),
    (f"{APP}.port = 1; x()", "f.py:1: is not an assignment of a constant"),
    (f"{APP}.max_kernels = c.Other.x = 3", 'max-kernels: "3" '),
    (f"{APP}.max_kernels = -1", 'max-kernels: "-1" '),
    (f"{APP}.base_url = f'/{{x}}'", "f.py:1: EnterpriseGatewayApp.base_url: the value is not a constant"),
    (f"{APP}.port = 1 + 1", "f.py:1: EnterpriseGatewayApp.port: the value is not a constant"),
    (f"{APP}.client_envs = {{'a': 1}}", "f.py:1: EnterpriseGatewayApp.client_envs: the value is not a constant"),
    (f"{APP}.client_envs = [None]", "f.py:1: EnterpriseGatewayApp.client_envs: the value is not a list"),
    (f"{APP}.port == 1", "f.py:1: EnterpriseGatewayApp.port is changed"),
    (f"{APP}.client_envs += ['A']", "f.py:1: EnterpriseGatewayApp.client_envs is changed"),
    (f"del {APP}.client_envs", "f.py:1: EnterpriseGatewayApp.client_envs is changed"),
    (f"try:\n  pass\nexcept E:\n  {APP}.port = 1", "f.py:4: EnterpriseGatewayApp.port stands in a block"),
    (f"class A:\n  def f(c):\n    {APP}.port = 1", "f.py:3: EnterpriseGatewayApp.port stands in a block"),
    ("load_subconfig('x.py')", "f.py:1: is not an assignment of a constant"),
    (f"x = '''\n{APP}.port = 1\n'''", "f.py:1: is not an assignment of a constant"),
])
def test_python(text, want, tmp_path, monkeypatch):
    """Assignments of constants are read. Everything else is named with its line."""
    monkeypatch.chdir(tmp_path)
    Path("f.py").write_text(text)
    got = translate("f.py")
    assert want in got
    assert "listen:" not in got or "listen:" in want or "; x()" in text


def test_nothing_is_executed(run, tmp_path):
    """No code of a configuration runs, at the top or in an expression."""
    mark, file = tmp_path / "mark", tmp_path / "f.py"
    file.write_text(f"open({str(mark)!r}, 'w')\n{APP}.ip = str(open({str(mark)!r}, 'w'))\n")
    assert run("config", file)[0] == 0 and not mark.exists()


@pytest.mark.parametrize("name, text, want", [
    ("f.py", f"\n{APP}.auth_token = 'hunter2", "f.py:2: is not Python: "),
    ("f.py", f"{APP}.client_envs = ['A'", "f.py:1: is not Python: "),
    ("f.py", "\0", "f.py:1: is not Python: "),
    ("f.json", '{\n"EnterpriseGatewayApp": hunter2', "f.json:2: is not JSON"),
    ("f.json", "[]", "f.json: is not an object"),
    ("f.env", "x" * (1 << 20) + "x", "f.env: is larger than 1048576 bytes"),
    ("f.env", b"\xff", "f.env: is not UTF-8"),
])
def test_bad_files(name, text, want, run, tmp_path, monkeypatch):
    """A file that cannot be read has an error with its line, and without its contents."""
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    code, out, err = run("config", name)
    assert (code, out) == (2, "") and want in err and "hunter" not in err


@pytest.mark.parametrize("args, want", [
    ([], "an argument is missing"),
    (["/nowhere/config.py"], "/nowhere/config.py: no such file or directory"),
    (["--Nope.x=hunter2"], "--Nope.x: is not an option of Enterprise Gateway 3.3"),
    (["--ip"], "--ip: a value is missing"),
    (["EG_PORT=1", "--token-file="], "--token-file: is empty"),
])
def test_command_line(args, want, run):
    """A wrong command line has exit status 2."""
    code, out, err = run("config", *args)
    assert (code, out) == (2, "") and want in err and "hunter" not in err


def test_token(run, tmp_path):
    """The token is written to a new file that only this user can read, and is printed nowhere."""
    path = tmp_path / "token"
    args = ["config", "EG_AUTH_TOKEN=hunter2-hunter2", "--token-file", path, "--port", "9000"]
    code, out, err = run(*args)
    assert code == 0 and f"token-file: {path}" in out and "listen: 127.0.0.1:9000" in out and "hunter" not in out + err
    assert path.read_text() == "hunter2-hunter2\n" and stat.S_IMODE(path.stat().st_mode) == 0o600
    code, _, err = run(*args)
    assert code == 1 and "file exists" in err
    assert run("config", "--port=1", f"--token-file={tmp_path}/other")[0] == 1


def test_chart(run, tmp_path):
    """Values for the chart have no token either. helm reads its file."""
    path = tmp_path / "token"
    code, out, err = run("config", "--chart", "EG_AUTH_TOKEN=hunter2-hunter2", f"--token-file={path}", "EG_PORT=9000",
                         "EG_MAX_KERNELS=7", "EG_NAMESPACE=eg")
    assert (code, err) == (0, "ekg-migrate: settings: 4; without a counterpart: 0; not read: 0\n")
    assert f"--set-file authToken={path}" in out and "hunter" not in out
    assert yaml.safe_load(out) == {"service": {"port": 9000}, "settings": {"max-kernels": "7"}}


def test_table():
    """Each option has a setting or a reason, and each class and each reason is used."""
    for option in TABLE["options"]:
        assert "setting" in option or "why" in option or "reason" in option, option
        assert option.get("group") is None or option["group"] in TABLE["classes"]
        assert set(option) <= {"group", "traits", "variables", "list", "setting", "why", "reason"}
    for key, field in (("classes", "group"), ("reasons", "reason")):
        assert set(TABLE[key]) == {option[field] for option in TABLE["options"] if field in option}
