"""Files that hold one secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.supervisor.config import ConfigError, load
from tailrace.supervisor.secret_file import SECRET_MAX_BYTES, SecretFileError, read_secret


def write(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.touch(mode)
    path.chmod(mode)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
@pytest.mark.parametrize("content", [b"s e cret", b"s e cret\n", b"s e cret\r\n"])
def test_the_end_of_the_line_is_no_part_of_it(tmp_path: Path, content: bytes, mode: int) -> None:
    assert read_secret(write(tmp_path / "f", content, mode)) == "s e cret"


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (b"secret", 0o644, "others can read this secret; run: chmod o=,g-w"),
        (b"secret", 0o620, "others can read this secret"),
        (b"", 0o600, "must hold one line"),
        (b"\n", 0o600, "must hold one line"),
        (b"two\nlines\n", 0o600, "must hold one line"),
        (b"x" * (SECRET_MAX_BYTES + 1), 0o600, "must hold one line"),
        (b"\xff", 0o600, "is not UTF-8"),
    ],
)
def test_what_is_no_secret_is_refused(tmp_path: Path, content: bytes, mode: int, why: str) -> None:
    path = write(tmp_path / "f", content, mode)
    with pytest.raises(SecretFileError, match=why) as refused:
        read_secret(path)
    assert str(path) in str(refused.value) and "secret;" not in str(refused.value).replace("this secret;", "")


def test_the_password_of_a_node_is_read_with_the_configuration(tmp_path: Path) -> None:
    path, config = write(tmp_path / "f", b"pw\n"), tmp_path / "t.toml"
    config.write_text(f'[replication]\nuser = "east"\npassword_file = "{path}"\n')
    settings = load(config)
    assert (settings.replication_password, "pw" in repr(settings)) == ("pw", False)
    path.unlink()
    with pytest.raises(ConfigError, match=r"t\.toml:3: .*f: cannot be read: No such file"):
        load(config)


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ('user = "east"\n', "password_file is missing: a user and its password go together"),
        ('password_file = "{path}"\n', "user is missing"),
        ('user = "anonymous"\npassword_file = "{path}"\n', "user: the name of a user has"),
        ('user = "a,b"\npassword_file = "{path}"\n', "user: the name of a user has"),
    ],
)
def test_a_user_and_its_password_go_together(tmp_path: Path, section: str, why: str) -> None:
    path, config = write(tmp_path / "f", b"pw\n"), tmp_path / "t.toml"
    config.write_text("[replication]\n" + section.format(path=path))
    with pytest.raises(ConfigError, match=why):
        load(config)
