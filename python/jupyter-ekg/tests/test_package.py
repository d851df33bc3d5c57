"""What is installed beside the code: the switch that enables the extension, and the page's part."""

import json
import re
from pathlib import Path

from jupyter_core.paths import jupyter_config_path, jupyter_path

import jupyter_ekg

LAB = Path(jupyter_ekg.__file__).parent / "labextension"


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
    """JupyterLab finds the file that it is to load, under the name that the file uses; the versions agree."""
    for folder in (LAB, installed(jupyter_path(), "labextensions/jupyter-ekg")):
        package = json.loads((folder / "package.json").read_text())
        entry = (folder / package["jupyterlab"]["_build"]["load"]).read_text()
        assert f"const NAME = '{package['name']}';" in entry
        assert json.loads((folder / "install.json").read_text())["packageName"] == "jupyter-ekg"
    python = re.sub(r"\.dev(\d+)$", r"-dev.\1", jupyter_ekg.__version__)
    assert json.loads((LAB / "package.json").read_text())["version"] == python


def test_names_are_loaded_when_asked_for():
    """The package's names exist, and others do not."""
    for name in jupyter_ekg.__all__:
        assert getattr(jupyter_ekg, name) is not None
    assert not hasattr(jupyter_ekg, "nothing")
