"""Runs test suites of Jupyter's own packages against our kernel.

Their sources are fetched when the tests run and are not part of this repository. Nothing in them is
changed: they start the kernelspec ``python3``, and here that name means our kernel.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pytest
from home import PYTHON_PATH, Home
from kernel_driver import kernel_variables
from sandbox_server import REPOSITORY, RunningSandbox

FETCH_SECONDS = 90
CHAT = "upstream"

WARM_UP = """
try:
    import jedi
    jedi.Interpreter("zi", [{}]).complete()
except Exception:
    pass
"""
"""Fills jedi's cache in the sandbox, as the first completion of a user does."""


@dataclass
class SuiteResult:
    """How the tests of a suite ended.

    Parameters
    ----------
    passed, failed, skipped
        Their names, without the module; for failed ones with what was said.
    arguments
        What pytest is told to run one of them alone, by name.
    """

    passed: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    arguments: dict[str, str] = field(default_factory=dict)


def suite_directory(cache: pytest.Cache, name: str, needs: Sequence[str] = ()) -> Path:
    """The unpacked sources of the installed version of a package, kept in pytest's cache.

    Parameters
    ----------
    cache
        Pytest's cache.
    name
        The package.
    needs
        Packages that its tests import beyond ours; put beside the sources.
    """
    whole_name = f"{name}-{version(name)}"
    directory = cache.mkdir("upstream")
    if not (directory / whole_name / "tests").is_dir():
        # The build backend is asked for metadata; the one that we build with is there already.
        _pip("download", "--no-binary", ":all:", "--no-build-isolation", f"{name}=={version(name)}",
             "--dest", str(directory))  # fmt: skip
        with tarfile.open(directory / f"{whole_name}.tar.gz") as archive:
            archive.extractall(directory, filter="data")
    for need in needs:
        if not (directory / "needs" / need).exists():
            _pip("install", "--target", str(directory / "needs" / need), need)
    return directory / whole_name


def _pip(*arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    command = [*pip, arguments[0], "--no-deps", *arguments[1:]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip("the package index does not answer")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        pytest.skip(f"the sources could not be fetched: {last}")


def run_suite(
    server: RunningSandbox,
    home: Home,
    directory: Path,
    arguments: Sequence[str],
    *,
    timeout_seconds: float,
) -> SuiteResult:
    """Run tests of a suite in a process of their own, with our kernel as ``python3``.

    Parameters
    ----------
    server
        The sandbox server that the kernels talk to.
    home
        Jupyter directories for the suite.
    directory
        The suite's sources.
    arguments
        Further arguments of pytest: the tests.
    timeout_seconds
        The most that it may take.
    """
    server.ready(CHAT, f"session-of-{CHAT}", f"campaign-of-{CHAT}")
    server.tool(CHAT, "sandbox_python", code=_prepare_sandbox(directory))
    share = home.path / "share"
    specification = share / "kernels/python3"
    specification.mkdir(parents=True)
    ours = json.loads((REPOSITORY / "kernelspec/kernel.json").read_text("utf-8"))
    ours["argv"][0] = sys.executable
    (specification / "kernel.json").write_text(json.dumps(ours), "utf-8")
    report = home.path / "report.xml"
    environment = home.environment(kernel_variables(server, CHAT, IVY_ROUTE="agent"))
    environment["JUPYTER_PATH"] = str(share)  # comes before the one of the environment
    for name in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST"):
        environment.pop(name, None)
    needs = [str(one) for one in (directory.parent / "needs").glob("*")]
    environment["PYTHONPATH"] = os.pathsep.join([PYTHON_PATH, *needs])
    command = [
        *(sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={directory}", "-q"),
        *("-p", "no:cacheprovider", "--tb=line", "--timeout=60", f"--junitxml={report}"),
        *("-o", "asyncio_default_fixture_loop_scope=function", *arguments),
    ]
    with (home.path / "suite.log").open("wb") as log:
        subprocess.run(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=timeout_seconds,
        )
    return _read(report)


def _prepare_sandbox(directory: Path) -> str:
    """A script that puts the file which a notebook wants to see where the sandbox's cells run."""
    lines = [WARM_UP, "import base64"]
    for path in (directory / "tests/files").glob("*.png"):
        data = base64.b64encode(path.read_bytes()).decode()
        lines.append(f"open({path.name!r}, 'wb').write(base64.b64decode({data!r}))")
    return "\n".join(lines)


def _read(report: Path) -> SuiteResult:
    result = SuiteResult()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = case.get("name", "").partition("-opts")[0]
        name = name + "]" if "[" in name and not name.endswith("]") else name
        package, _, place = case.get("classname", "").partition(".")
        module, *classes = place.split(".")
        file = f"{package}/{module}.py"
        result.arguments[name] = "::".join([file, *classes, case.get("name", "")])
        problems = [*case.findall("failure"), *case.findall("error")]
        if problems:
            result.failed[name] = problems[0].get("message", "")[:300]
        elif case.find("skipped") is not None:
            result.skipped.add(name)
        else:
            result.passed.add(name)
    return result
