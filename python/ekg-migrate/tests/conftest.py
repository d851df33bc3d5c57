"""What the tests share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Callable

import pytest

from ekg_migrate.cli import main

DATA = Path(__file__).parents[3] / "testdata" / "enterprise" / "migrate"

KERNEL_JSON = """{"argv": ["python", "launch_kubernetes.py", "--response-address", "{response_address}"],
"display_name": "x", "language": "python", "metadata": {"process_proxy": {"class_name": "x.KubernetesProcessProxy"}}}"""

POD = "apiVersion: v1\nkind: Pod\nspec:\n"  # three lines


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hides the settings of the user that runs the tests."""
    for name in os.environ:
        if name.startswith(("EKG_", "EG_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line. Returns the exit status, and what it prints on stdout and on stderr."""

    def run_main(*args: object) -> tuple[int, str, str]:
        try:
            code = main([str(arg) for arg in args])
        except SystemExit as end:  # argparse's
            code = int(end.code or 0)
        out = capsys.readouterr()
        return code, out.out, out.err

    return run_main


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., Path]:
    """Writes a kernelspec of Enterprise Gateway, and returns its folder."""

    def write(template: str | None = POD, kernel_json: str = KERNEL_JSON) -> Path:
        folder = tmp_path / "spec"
        (folder / "scripts").mkdir(parents=True)
        (folder / "kernel.json").write_text(kernel_json)
        if template is not None:
            (folder / "scripts/kernel-pod.yaml.j2").write_text(template)
        return folder

    return write


@pytest.fixture
def copied(tmp_path: Path) -> Callable[..., Path]:
    """Copies a kernelspec of the data with its template, and gives it a logo."""

    def copy(name: str, to: str = "") -> Path:
        folder = tmp_path / "copies" / (to or name)
        shutil.copytree(DATA / "convert" / name, folder)
        (folder / "logo-64x64.png").write_text("logo")
        return folder

    return copy
