"""The packages of a sandbox: the lock, what changed since it began, and the install."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
import time
import venv
import zipfile
from pathlib import Path
from typing import Any

import pip
import pytest

from ivy_kernel.agent.work import packages as module
from ivy_kernel.agent.work.packages import Installation, Packages, lock_digest


def distribution(place: Path, name: str, version: str, direct: Any = None) -> Path:
    """Make what an installer leaves behind."""
    made = place / f"{name}-{version}.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nx")
    if direct:
        (made / "direct_url.json").write_text(json.dumps(direct))
    return made


def wheel(place: Path, name: str, version: str) -> None:
    """Build a wheel of one module."""
    info = f"{name}-{version}.dist-info"
    content = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    content[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
    with zipfile.ZipFile(place / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)


def program(path: Path, text: str) -> Path:
    """Write a program in the shell's language."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fates(told: dict[str, Any]) -> dict[str, str]:
    """Return name → what happened to it."""
    return {each["name"]: each["fate"] for each in told["packages"]}


@pytest.fixture
def no_r(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without R."""
    monkeypatch.setattr(module, "r_libraries", list)


def test_the_lock_is_what_the_metadata_say(tmp_path: Path) -> None:
    """All distributions of this interpreter, by their normal names."""
    lock = Packages(str(tmp_path)).lock()
    found: dict[str, str] = {}
    for each in importlib.metadata.distributions():
        found.setdefault(module.normal_name(each.metadata["Name"]), each.version)
    assert lock["pip"] == found
    assert lock["python"] == sys.version.split()[0]
    assert lock["direct"]["ivy-kernel"].startswith(("-e file://", "file://"))


def test_the_first_on_the_path_wins(tmp_path: Path) -> None:
    """It is the one that is imported."""
    distribution(tmp_path / "user", "One", "2.0")
    distribution(tmp_path / "system", "one", "1.0")
    path = [str(tmp_path / "user"), str(tmp_path / "system")]
    assert Packages(str(tmp_path), path=path).lock()["pip"] == {"one": "2.0"}


def test_what_changed_is_known_after_a_restart(tmp_path: Path) -> None:
    """The first lock is kept; a damaged one is begun anew."""
    state, site = tmp_path / "state", tmp_path / "site-packages"
    state.mkdir()
    distribution(site, "Kept", "1.0")
    old = distribution(site, "Replaced", "1.0")
    gone = distribution(site, "gone", "1.0")
    packages = Packages(str(state), path=[str(site)])
    before = packages.digest()
    assert packages.changed() == {}
    shutil.rmtree(old)
    shutil.rmtree(gone)
    distribution(site, "Replaced", "2.0+local")
    distribution(site, "New_One", "0.1")
    changed = {"gone": ["1.0", None], "new-one": [None, "0.1"], "replaced": ["1.0", "2.0+local"]}
    assert packages.changed() == changed
    assert packages.digest() == lock_digest(packages.lock()) != before
    again = Packages(str(state), path=[str(site)]).describe()
    assert again["changed"] == changed
    assert again["since"] <= time.time()
    (state / "packages.json").write_text("{")
    assert Packages(str(state), path=[str(site)]).changed() == {}


def test_a_directory_is_read_again_only_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_r: None
) -> None:
    """A look beside each cell costs no listing."""
    site = tmp_path / "site-packages"
    distribution(site, "one", "1.0")
    long_ago = time.time() - 60
    os.utime(site, (long_ago, long_ago))
    packages = Packages(str(tmp_path), path=[str(site)])
    listed: list[Any] = []
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or real(path))
    packages.digest()
    assert listed == []
    distribution(site, "two", "1.0")
    assert set(packages.lock()["pip"]) == {"one", "two"}
    assert listed == [str(site)]


@pytest.mark.parametrize(
    ("direct", "expected"),
    [
        (
            {
                "url": "https://user:secret@example.org/a.git?key=secret",
                "vcs_info": {"vcs": "git", "commit_id": "abc123"},
            },
            "git+https://example.org/a.git@abc123",
        ),
        (
            {
                "url": "https://example.org/t/secret/a.whl",
                "archive_info": {"hashes": {"sha256": "00ff"}},
            },
            "https://example.org/t//a.whl#sha256=00ff",
        ),
        ({"url": "file:///a", "dir_info": {"editable": True}}, "-e file:///a"),
        (
            {"url": "file:///a.zip", "archive_info": {"hash": "sha256=1"}, "subdirectory": "b"},
            "file:///a.zip#subdirectory=b",
        ),
        ({"url": "file:///a", "dir_info": {}}, "file:///a"),
    ],
)
def test_a_package_from_an_address_is_locked_by_it(
    tmp_path: Path, direct: dict[str, Any], expected: str
) -> None:
    """As PEP 610 says, without anybody's key."""
    distribution(tmp_path / "site", "one", "1.0", direct)
    lock = Packages(str(tmp_path), path=[str(tmp_path / "site")]).lock()
    assert lock["direct"] == {"one": expected}
    assert "secret" not in json.dumps(lock)


def test_conda_and_r_are_read_without_starting_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, versions and builds from the files that they keep."""
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta" / "numpy-base-2.1.0-py311_0.json").write_text("{}")
    (tmp_path / "conda-meta" / "history").write_text("")
    library = tmp_path / "library"
    for name, more in (("dplyr", ""), ("base", "Priority: base\n"), ("stats", "Priority: base\n")):
        (library / name).mkdir(parents=True)
        version = "1.1.4" if name == "dplyr" else "4.9.9"
        text = f"Package: {name}\nVersion: {version}\n{more}"
        (library / name / "DESCRIPTION").write_text(text)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("R_LIBS", f"{library}:/missing")
    packages = Packages(str(tmp_path))
    lock = packages.lock()
    assert lock["conda"] == {"numpy-base": "2.1.0=py311_0"}
    assert lock["r"]["dplyr"] == "1.1.4"
    assert lock["r"]["R"] == "4.9.9"
    assert "stats" not in lock["r"]
    shutil.rmtree(library / "dplyr")
    (tmp_path / "conda-meta" / "numpy-base-2.1.0-py311_0.json").unlink()
    changed = packages.changed()
    assert changed["conda:numpy-base"] == ["2.1.0=py311_0", None]
    assert changed["r:dplyr"][0] == "1.1.4"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment to install into; its pip is ours."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place / "venv", with_pip=False, symlinks=True)
    (place / "pip").mkdir()
    (place / "pip" / "pip").symlink_to(Path(pip.__file__).parent)
    (place / "wheels").mkdir()
    wheel(place / "wheels", "tinyone", "1.0")
    wheel(place / "wheels", "tinyone", "2.0")
    wheel(place / "wheels", "tinytwo", "0.5")
    return place


def test_a_lock_is_installed_and_what_fails_is_named(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_r: None
) -> None:
    """Exact versions; one that cannot be had does not keep the others from coming."""
    monkeypatch.setenv("PYTHONPATH", str(environment / "pip"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(environment / "wheels"))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = environment / "venv" / "lib" / version / "site-packages"
    python = str(environment / "venv" / "bin" / "python")
    packages = Packages(str(tmp_path), python=python, path=[str(site)])
    address = (environment / "wheels" / "tinytwo-0.5-py3-none-any.whl").as_uri()
    lock = {
        "pip": {
            "tinyone": "1.0",
            "tinytwo": "0.5",
            "not-there": "9.9",
            "was-here": "1.0",
            "-r": "1",
        },
        "direct": {"tinytwo": address, "was-here": "-e file:///was/here"},
        "conda": {"xz": "5.2=0"},
    }
    told = packages.install(lock)
    assert fates(told) == {
        "tinyone": "installed", "tinytwo": "installed",
        "not-there": "failed", "was-here": "failed", "-r": "failed", "xz": "failed",
    }  # fmt: skip
    why = {each["name"]: each["why"] for each in told["packages"]}
    assert why["tinyone"] == ""
    assert "not-there==9.9" in why["not-there"]
    assert why["was-here"] == "it was installed from file:///was/here, which is not here"
    assert why["-r"] == "it is no name and version"
    assert why["xz"] == "there is no conda here"
    assert packages.changed() == {"tinyone": [None, "1.0"], "tinytwo": [None, "0.5"]}
    assert (site / "tinyone.py").read_text() == "version = '1.0'\n"
    assert "tinyone" in told["log"]
    again = packages.install({"pip": {"tinyone": "1.0"}})
    assert (again["present"], again["packages"]) == (1, [])


def test_conda_s_packages_come_back_by_its_own_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_r: None
) -> None:
    """Whichever is there; what counts is what is there afterwards."""
    meta = tmp_path / "conda-meta"
    meta.mkdir()
    (tmp_path / "bin").mkdir()
    program(
        tmp_path / "bin" / "micromamba", f'echo "$@" > {tmp_path}/said; touch {meta}/xz-5-0.json'
    )
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.delenv("CONDA_EXE", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    told = Packages(str(tmp_path)).install({"conda": {"xz": "5=0", "zlib": "1=2"}})
    assert fates(told) == {"xz": "installed", "zlib": "failed"}
    said = (tmp_path / "said").read_text()
    assert said == f"install --yes --prefix {tmp_path} xz=5=0 zlib=1=2\n"


def test_what_a_tool_says_is_bounded_and_holds_no_key(tmp_path: Path) -> None:
    """The end of it, and why it failed in one line."""
    python = program(
        tmp_path / "python",
        "yes 'looking at https://user:secret@example.org/simple' | head -c 400000; echo\n"
        "echo 'ERROR: no https://user:secret@example.org/simple?key=secret'; echo bye; exit 1",
    )
    work = Installation(str(python), time.monotonic() + 60)
    work.pip({"one": "1.0"}, {})
    assert work.told[0]["why"] == "ERROR: no https://example.org/simple"
    assert "secret" not in work.log
    assert 1000 < len(work.log) <= module.LOG_BYTES


def test_a_tool_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """And the next one is not begun."""
    python = program(tmp_path / "python", f"echo $$ > {tmp_path}/pid; echo begun; exec sleep 600")
    work = Installation(str(python), time.monotonic() + 0.5)
    work.pip({"one": "1.0", "two": "1.0"}, {})
    assert [each["why"] for each in work.told] == ["there was no time left"] * 2
    assert work.log == "begun"
    process = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}")
    assert not process.exists()
