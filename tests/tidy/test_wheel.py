"""The wheel as a guest among others: beside an application's own modules, and beside PyPI's `supervisor`."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import click
import pytest

from tailrace.cli.ending import SERVER_PACKAGES
from tailrace.shard import leaves
from tests.tidy import building, tree

WAIT_S = 120
FIRST_WEEK_TIMEOUT_S = 600
COMPILED = ("google-crc32c", "msgpack", "psutil", "setproctitle")
PYTHONS = ("3.13", "3.12")  # beside the one that runs the tests
# An application has modules of these names, and prints which of them it gets.
OWN = ("broker", "shard", "spark", "supervisor", "client", "cluster", "protocol", "cli", "deploy")
PROGRAM = """
import sys
import tailrace
rooms = ("broker", "cli", "cluster", "deploy", "protocol", "shard", "spark", "supervisor")
assert not {f"tailrace.{room}" for room in rooms} & set(sys.modules), "it is light"
tailrace.connect
import broker, cli, client, deploy, protocol, shard, spark
print(tailrace.__file__, *(each.own for each in (broker, cli, client, deploy, protocol, shard, spark)))
"""


def tracked() -> list[str]:
    """The files of this checkout that git has; none without git."""
    done = subprocess.run(["git", "ls-files"], cwd=tree.ROOT, capture_output=True, text=True, check=False)
    return [name for name in done.stdout.splitlines() if (tree.ROOT / name).is_file()]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked sdist; without git, which knows what belongs in one, a copy of the installed sources."""
    if leaves.interpreted_wanted():
        pytest.skip("nothing here depends on which build is loaded; the other run has it")
    folder = tmp_path_factory.mktemp("sources")
    root = folder / "checkout"
    root.mkdir()
    names = tracked()
    if not names:
        building.copy_sources(root)
        return root
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tree.ROOT / name, root / name)
    with tarfile.open(building.make_sdist(root)) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return unpacked


@pytest.fixture(scope="module")
def wheel(sources: Path) -> Path:
    return building.make_wheel(sources, TAILRACE_DISABLE_COMPILED="1")


def make_guest(folder: Path) -> Path:
    """The Python of a fresh environment, which sees the dependencies of this one and nothing else of it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=WAIT_S)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    dependencies = ("click", "google_crc32c", "msgpack", "rich", "markdown_it", "mdurl", "pygments")
    (site / "dependencies.pth").write_text(f"{link(folder / 'dependencies', *dependencies)}\n")
    return folder / "venv" / "bin" / "python"


def link(folder: Path, *modules: str) -> Path:
    """Makes a folder with these installed modules."""
    folder.mkdir()
    for name in modules:
        (folder / name).symlink_to(Path(click.__file__).parents[1] / name)
    return folder


def make_server_guest(folder: Path, wheel: Path, version: str) -> Path | None:
    """As `make_guest`, of another Python, with all that a server needs and the wheel.

    Compiled modules for it come from the registry. None without such a Python, or without these.
    """
    python = find_python(version)
    if python is None or not download_compiled(folder / "compiled", version):
        return None
    subprocess.run([python, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=WAIT_S)
    guest = folder / "venv" / "bin" / "python"
    plain = link(folder / "plain", "click", "rich", "markdown_it", "mdurl", "pygments", "h11", "prometheus_client")
    (site_of(guest) / "dependencies.pth").write_text(f"{folder / 'compiled'}\n{plain}\n")
    install(guest, wheel)
    return guest


def download_compiled(folder: Path, version: str) -> bool:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--no-compile"]
    command = [*pip, f"--python-version={version}", f"--target={folder}", *COMPILED]
    try:
        return subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def find_python(version: str) -> str | None:
    """A Python of that version that can make environments: on the PATH, or among those of pyenv."""
    for path in (f"python{version}", *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))):
        if shutil.which(path):
            done = subprocess.run(
                [path, "-c", "import ensurepip, venv"], capture_output=True, timeout=WAIT_S, check=False
            )
            if done.returncode == 0:
                return path
    return None


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """An environment in which the wheel is installed."""
    python = make_guest(tmp_path_factory.mktemp("guest"))
    install(python, wheel)
    return python


def site_of(python: Path) -> Path:
    return next(python.parents[1].glob("lib/python*/site-packages"))


def install(python: Path, wheel: Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, "--no-compile", str(wheel)], check=True, timeout=WAIT_S)


def install_supervisor(python: Path) -> None:
    """PyPI's, as it is installed here, file by file."""
    distribution = importlib.metadata.distribution("supervisor")
    for file in distribution.files or ():
        if ".." not in file.parts:
            target = site_of(python) / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(distribution.locate_file(file)), target)


def run(
    python: Path, *arguments: str, cwd: Path | None = None, further: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs it, also with the modules in the folder `further`."""
    return subprocess.run(
        [python, *arguments],
        cwd=cwd or python.parents[1],  # not this checkout, whose folders Python would take for packages
        env={**os.environ, "PYTHONPATH": str(further)} if further else None,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_all_of_it_is_one_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"tailrace", "pyspark_tailrace.py"}
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    metadata = next(name for name in names if name.endswith("/METADATA"))
    lines = zipfile.ZipFile(wheel).read(metadata).decode().splitlines()
    needs = [line.split()[1] for line in lines if line.startswith("Requires-Dist:") and ";" not in line]
    required = {re.split("[<>=]", each)[0] for each in needs}
    assert required == {"click", "google-crc32c", "msgpack", "rich"}, "what only a server needs comes with its extra"


def test_each_folder_with_modules_is_installed() -> None:
    setuptools = tomllib.loads((tree.ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = setuptools["package-dir"]
    for room in ("broker", "client", "cluster", "cli", "deploy", "protocol", "shard", "spark", "supervisor"):
        (package,) = (name for name, folder in folders.items() if folder == room)
        found = {path.parent.relative_to(tree.ROOT / room) for path in (tree.ROOT / room).rglob("__init__.py")}
        assert {".".join((package, *path.parts)) for path in found} <= set(setuptools["packages"])


@pytest.mark.thorough
@pytest.mark.slow
def test_an_application_keeps_its_own_modules(guest: Path, tmp_path: Path) -> None:
    application = tmp_path / "application"
    application.mkdir()
    for name in OWN:
        (application / f"{name}.py").write_text(f"own = {name!r}\n")
    done = run(guest, "-c", PROGRAM, cwd=application)
    assert done.stdout.split()[1:] == ["broker", "cli", "client", "deploy", "protocol", "shard", "spark"], done.stderr
    assert done.stdout.split()[0] == str(site_of(guest) / "tailrace" / "__init__.py")


@pytest.mark.thorough
@pytest.mark.slow
def test_the_command_without_what_a_server_needs(guest: Path) -> None:
    command = str(guest.with_name("tailrace"))
    assert "tailrace.service" in run(guest, command, "deploy", "--list").stdout
    assert run(guest, command, "pub", "--help").returncode == 0
    done = run(guest, command, "serve", "--data", "/nonexistent/tailrace")
    assert (done.returncode, done.stdout) == (1, "")
    packages = "h11, prometheus_client, psutil, setproctitle"
    missing = f"this needs {packages}, not installed here; install with: pip install 'tailrace[server]'"
    assert done.stderr == f"tailrace: {missing}\n"


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_a_debian_package_is_made_of_it(tmp_path: Path, wheel: Path) -> None:
    """From the wheel alone: its dependencies are those of this environment."""
    environment = {**os.environ, "PYTHON": sys.executable, "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1"}
    environment |= {"PIP_NO_COMPILE": "1", "DPKG_DEB_COMPRESSOR_TYPE": "none"}  # it is unpacked at once
    build = [str(tree.ROOT / "scripts" / "build-deb"), str(wheel), str(tmp_path)]
    subprocess.run(build, env=environment, check=True, timeout=WAIT_S, capture_output=True)
    [package] = tmp_path.glob("tailrace_*.deb")
    root = tmp_path / "root"
    subprocess.run(["dpkg-deb", "--extract", package, root], check=True, timeout=WAIT_S)
    subprocess.run(["dpkg-deb", "--control", package, tmp_path / "control"], check=True, timeout=WAIT_S)
    for script in ("postinst", "prerm"):
        subprocess.run(["sh", "-n", tmp_path / "control" / script], check=True, timeout=WAIT_S)
    unit = (root / "lib/systemd/system/tailrace.service").read_text()
    command = re.search(r"^ExecStart=/(\S+) serve --config /(\S+) ", unit, re.MULTILINE)
    assert command is not None and (root / command[2]).read_text() == (tree.ROOT / "deploy/tailrace.toml").read_text()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = [str(root / command[1]), "serve", "--config", str(root / command[2]), "--check-config"]
    done = subprocess.run(words, env={**os.environ, "PATH": path}, capture_output=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert os.readlink(root / "usr/bin/tailrace") == f"/{command[1]}"


APPLICATIONS_TESTS = """
import tailrace

def test_an_order_is_logged(tailrace_server):
    with tailrace_server.connect() as client:
        assert client.publish("orders", b"one").seq == 0

def test_nothing_is_lost_in_a_crash(tailrace_server):
    with tailrace_server.connect() as client:
        client.publish("orders", b"one")
        tailrace_server.kill()
        tailrace_server.start()
        client.publish("orders", b"two")
        assert [message.payload for message in client.subscribe("orders", end=tailrace.NOW)] == [b"one", b"two"]
"""
FOR_PYTEST = ("pytest", "_pytest", "py.py", "pluggy", "iniconfig", "packaging")


@pytest.mark.thorough
@pytest.mark.slow
def test_an_applications_tests_have_a_broker(tmp_path: Path, guest: Path) -> None:
    further = link(tmp_path / "further", *SERVER_PACKAGES, *FOR_PYTEST)
    application = tmp_path / "application"
    application.mkdir()
    (application / "test_orders.py").write_text(APPLICATIONS_TESTS)
    done = run(guest, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=application, further=further)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


CONSUMES = """
import sys, tailrace
from tailrace.testing import Server
with Server(workers=2) as server, server.connect() as client:
    client.publish_many("orders", [b"one", b"two"], key="k")
    with client.consumer("orders", "billing") as consumer:
        for expected in (b"one", b"two"):
            message = consumer.receive(60)
            assert (message.payload, message.key) == (expected, "k")
            message.ack()
    assert [message.payload for message in client.subscribe("orders", end=tailrace.NOW)] == [b"one", b"two"]
print(".".join(map(str, sys.version_info[:2])))
"""


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS[1:])
def test_another_python(tmp_path: Path, wheel: Path, version: str) -> None:
    guest = make_server_guest(tmp_path, wheel, version)
    if guest is None:
        pytest.skip(f"no Python {version} on this machine, or no modules for it")
    done = run(guest, "-c", CONSUMES)
    assert done.stdout == f"{version}\n", done.stderr


@pytest.fixture
def newest(tmp_path: Path, wheel: Path) -> Path:
    """The programs of the wheel, installed for the newest Python that is here."""
    guest = make_server_guest(tmp_path, wheel, PYTHONS[0])
    if guest is None:
        pytest.skip(f"no Python {PYTHONS[0]} on this machine, or no modules for it")
    return guest.parent


@pytest.fixture
def checkout() -> Path:
    return Path(sys.executable).parent


@pytest.mark.slow
@pytest.mark.parametrize("installed", ["checkout", pytest.param("newest", marks=pytest.mark.thorough)])
def test_a_first_week(request: pytest.FixtureRequest, installed: str) -> None:
    """By the text of the documents."""
    programs = request.getfixturevalue(installed)
    script = [str(tree.ROOT / "scripts" / "first-week"), "--bin", str(programs)]
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *script]  # as in the background of a script
    done = subprocess.run(command, capture_output=True, text=True, timeout=FIRST_WEEK_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("supervisor_first", [False, True])
def test_it_stands_beside_the_supervisor_of_others(
    request: pytest.FixtureRequest, tmp_path: Path, wheel: Path, supervisor_first: bool
) -> None:
    if supervisor_first:
        guest = make_guest(tmp_path)
        install_supervisor(guest)
        install(guest, wheel)
    else:
        guest = request.getfixturevalue("guest")
        install_supervisor(guest)
    theirs = "import supervisor.options, supervisor.supervisord as s; print(s.__file__)"
    done = run(guest, "-c", theirs)
    assert done.stdout.strip() == str(site_of(guest) / "supervisor" / "supervisord.py"), done.stderr
    ours = "import tailrace.supervisor.config as c; print(c.__file__)"
    assert run(guest, "-c", ours).stdout.strip() == str(site_of(guest) / "tailrace" / "supervisor" / "config.py")


@pytest.mark.slow
def test_the_sdist_holds_everything(sources: Path) -> None:
    """The wheel of the other tests is built from it."""
    listed = tracked()
    if not listed:
        pytest.skip("not a checkout of git: nothing says what belongs in it")
    there = {path.relative_to(sources).as_posix() for path in sources.rglob("*") if path.is_file()}
    assert {name for name in listed if name != ".gitignore"} <= there
