"""What is installed beside the code: the switch that enables the extension, and the page's part."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from jupyter_core.paths import jupyter_config_path, jupyter_path

import jupyter_ekg

LAB = Path(jupyter_ekg.__file__).parent / "labextension"
ROOT = Path(__file__).parent.parent


def installed(folders, path):
    """A file or folder of the package among those in which Jupyter looks."""
    found = [Path(folder) / path for folder in folders if (Path(folder) / path).exists()]
    assert found, f"{path} is in none of {folders}"
    return found[0]


def test_enabled_by_being_installed():
    """Jupyter Server finds the extension in its configuration."""
    config = json.loads(installed(jupyter_config_path(), "jupyter_server_config.d/jupyter_ekg.json").read_text())
    assert config["ServerApp"]["jpserver_extensions"] == {"jupyter_ekg": True}
    assert jupyter_ekg._jupyter_server_extension_points() == [{"module": "jupyter_ekg"}]


def test_labextension_is_complete():
    """JupyterLab finds the file that it loads, which registers under the package's name; the versions agree."""
    python = re.sub(r"\.dev(\d+)$", r"-dev.\1", jupyter_ekg.__version__)
    for folder in (LAB, installed(jupyter_path(), "labextensions/jupyter-ekg")):
        package = json.loads((folder / "package.json").read_text())
        entry = (folder / package["jupyterlab"]["_build"]["load"]).read_text()
        assert '_JUPYTERLAB)["jupyter-ekg"]=' in entry
        assert (package["name"], package["version"]) == ("jupyter-ekg", python)
        assert json.loads((folder / "install.json").read_text())["packageName"] == "jupyter-ekg"


def test_labextension_is_built_from_its_sources():
    """The hashes that the build recorded are those of the sources and of the built files, and none is missing."""
    if not (ROOT / "package.json").exists():
        pytest.skip("the sources are not beside the tests")
    recorded = dict(reversed(line.split("  ")) for line in (ROOT / "labextension.sha256").read_text().splitlines())
    built = [path for path in LAB.rglob("*") if path.is_file()]
    sources = [path for path in (ROOT / "src").rglob("*") if path.is_file()]
    sources += [ROOT / name for name in ("package.json", "package-lock.json", "tsconfig.json")]
    present = {f"jupyter_ekg/labextension/{path.relative_to(LAB)}": path for path in built}
    present |= {str(path.relative_to(ROOT)): path for path in sources}
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in present.items()}
    assert hashes == recorded, "run make labextension"


def test_names_are_loaded_when_asked_for():
    """The package's names exist, and others do not."""
    for name in jupyter_ekg.__all__:
        assert getattr(jupyter_ekg, name) is not None
    assert not hasattr(jupyter_ekg, "nothing")
