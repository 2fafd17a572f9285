"""What wheel and sdist contain, built now from this tree."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import ivy_kernel

ROOT = Path(__file__).resolve().parents[2]
SPEC = "share/jupyter/kernels/ivy-sandbox"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a wheel and an sdist."""
    target = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return target


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    """The wheel, opened."""
    return zipfile.ZipFile(next(built.glob("*.whl")))


@pytest.mark.timeout(330)
def test_the_wheel_installs_the_kernelspec(wheel: zipfile.ZipFile) -> None:
    """Kernelspec and all three logos lie where Jupyter looks."""
    names = wheel.namelist()
    data = f"ivy_kernel-{ivy_kernel.__version__}.data/data/{SPEC}"
    for file in ("kernel.json", "logo-32x32.png", "logo-64x64.png", "logo-svg.svg"):
        assert f"{data}/{file}" in names
    spec = json.loads(wheel.read(f"{data}/kernel.json"))
    assert spec["display_name"] == "Ivy Sandbox"
    assert spec["language"] == "python"
    assert spec["interrupt_mode"] == "message"
    assert spec["argv"][:2] == ["python", "-c"]
    assert spec["argv"][3:] == ["-f", "{connection_file}"]


@pytest.mark.timeout(330)
def test_the_wheel_holds_every_module_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """All sources, the typing marker and the examples; no tests, no node_modules."""
    names = set(wheel.namelist())
    for path in (ROOT / "ivy_kernel").rglob("*.py"):
        assert path.relative_to(ROOT).as_posix() in names
    assert "ivy_kernel/py.typed" in names
    assert "ivy_kernel/examples/quickstart.ipynb" in names
    # `jupyter ivy install` starts from it, wherever the environment has put its own copy.
    assert (
        wheel.read("ivy_kernel/kernelspec/kernel.json")
        == (ROOT / "kernelspec" / "kernel.json").read_bytes()
    )
    info, data = (f"ivy_kernel-{ivy_kernel.__version__}.{end}" for end in ("dist-info", "data"))
    lab = f"{data}/data/share/jupyter/labextensions/ivy-kernel"
    wanted = [
        *(r"ivy_kernel/.+\.py", r"ivy_kernel/py\.typed", r"ivy_kernel/static/widget\.(css|js)"),
        r"ivy_kernel/examples/(.+\.ipynb|data/.+\.(md|csv|fasta))",
        r"ivy_kernel/kernelspec/(kernel\.json|logo-.+\.(png|svg))",
        rf"{data}/data/etc/jupyter/jupyter_server_config\.d/ivy_kernel\.json",
        rf"{data}/data/{SPEC}/(kernel\.json|logo-.+\.(png|svg))",
        rf"{lab}/((package|install)\.json|schemas/ivy-kernel/plugin\.json)",
        rf"{lab}/static/(.+\.js|third-party-licenses\.json)",
        rf"{info}/(METADATA|WHEEL|RECORD|entry_points\.txt|licenses/LICENSE)",
    ]
    assert [name for name in names if not any(re.fullmatch(each, name) for each in wanted)] == []


@pytest.mark.timeout(330)
def test_the_wheel_has_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    """`jupyter ivy` works after installing, and the licence travels along."""
    info = f"ivy_kernel-{ivy_kernel.__version__}.dist-info"
    assert (
        "jupyter-ivy = ivy_kernel.cli.app:main" in wheel.read(f"{info}/entry_points.txt").decode()
    )
    assert f"{info}/licenses/LICENSE" in wheel.namelist()


@pytest.mark.timeout(330)
def test_the_sdist_can_be_built_and_tested(built: Path) -> None:
    """It holds sources, kernelspec, examples, tests and documents."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for file in (
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "kernelspec/kernel.json",
        "examples/quickstart.ipynb",
        "tests/conftest.py",
        "ivy_kernel/settings/settings.py",
    ):
        assert file in names
    assert not [name for name in names if "node_modules" in name]
