from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tailrace.spark import session
from tailrace.spark.session import JAVA_MAJOR_MIN, VECTORS, java_home, java_major, quick_python, without_vectors
from tests.spark.java import with_quick_java


def fake_java(path: Path, version: str) -> Path:
    """A Java that only knows its version."""
    (path / "bin").mkdir(parents=True)
    program = path / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2; echo {VECTORS}@1\n")
    program.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any Java but the wheel's."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _name: None)


def test_a_machine_without_java_has_the_wheels() -> None:
    home = java_home()
    assert java_major(home) >= JAVA_MAJOR_MIN
    assert os.access(home / "bin" / "java", os.X_OK)


@pytest.mark.thorough
def test_spark_starts_on_the_wheels_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has not got a module that Spark wants loaded."""
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    environment = {**with_quick_java(), "JAVA_HOME": str(java_home())}
    done = subprocess.run([program, "--version"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"version {pyspark.__version__}" in done.stderr
    monkeypatch.setenv("JAVA_HOME", environment["JAVA_HOME"])
    assert str(java_home()) == environment["JAVA_HOME"]


def test_arguments_go_to_the_wheels_java_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "it's here" / "bin").mkdir(parents=True)
    program = tmp_path / "it's here" / "bin" / "java"
    program.write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    program.chmod(0o755)
    words = ["-Da=b c", f"--add-modules={VECTORS}", "", "$HOME", "'\"*", "--add-modules=other"]
    java = without_vectors(tmp_path / "it's here") / "bin" / "java"
    said = subprocess.run([java, *words], capture_output=True, text=True, check=True).stdout
    assert said == "".join(f"<{word}>" for word in words if word != words[1])


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("1.8.0_292", 8), ("21", 21), ("none", 0)])
def test_versions(tmp_path: Path, version: str, major: int) -> None:
    assert java_major(fake_java(tmp_path / "java", version)) == major
    assert java_major(tmp_path / "nowhere") == 0


def test_the_one_that_is_named_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, other = fake_java(tmp_path / "named", "17.0.1"), fake_java(tmp_path / "other", "21.0.1")
    monkeypatch.setattr(shutil, "which", lambda _name: str(other / "bin" / "java"))
    assert java_home() == other.resolve()
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert java_home() == named


def test_one_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    assert java_major(java_home()) >= JAVA_MAJOR_MIN


def test_what_is_started_in_the_background_stays_there() -> None:
    program = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"]
    inside = session.idle(lambda: subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    outside = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert (int(inside), int(outside)) == (os.SCHED_IDLE, os.sched_getscheduler(0))
    assert os.sched_getscheduler(0) != os.SCHED_IDLE


def test_none_at_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_wheel_java", lambda: None)
    with pytest.raises(RuntimeError, match="Java 17 or newer is missing: set JAVA_HOME"):
        java_home()


def test_spark_python_takes_the_installed_pyspark(tmp_path: Path) -> None:
    """And no zip, which is compiled anew in each process; other folders stay."""
    zips = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/python/lib/py4j-0.10.9.9-src.zip"]
    found = subprocess.run(
        [quick_python(), "-c", "import sys; print(sys.path[:3]); print(sys.argv[1:])", "a b", "c"],
        env={**os.environ, "PYTHONPATH": ":".join([zips[0], "/somewhere/a b", zips[1], str(tmp_path)])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.splitlines() == [str(["", "/somewhere/a b", str(tmp_path)]), str(["a b", "c"])]
