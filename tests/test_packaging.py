"""What an installation says about itself."""

import importlib.metadata
import importlib.resources
import tomllib
from pathlib import Path

import depthgauge

ROOT = Path(__file__).resolve().parents[1]


def test_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = {
        "pyproject.toml": project["version"],
        "installed metadata": importlib.metadata.version("depthgauge"),
        "depthgauge.__version__": depthgauge.__version__,
    }
    assert len(set(versions.values())) == 1, versions


def test_the_tests_run_against_this_source():
    assert Path(depthgauge.__file__).resolve().is_relative_to(ROOT / "src")


def test_type_information_is_shipped():
    assert importlib.resources.files("depthgauge").joinpath("py.typed").is_file()


def test_the_command_is_installed():
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="depthgauge")
    assert callable(script.load())
