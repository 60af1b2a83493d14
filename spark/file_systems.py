"""File systems by URL, through PyArrow: S3 and what speaks its protocol, Google Cloud Storage, HDFS."""

from __future__ import annotations

import errno
import re
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import fs

SCHEMES: Final = ("s3", "s3a", "gs", "gcs", "hdfs", "viewfs", "file")
WHOLE_OR_NOT: Final = ("s3", "gcs")
"""Types of file systems on which a file appears whole, when it is closed."""
GCS_RETRY_S: Final = 60
"""How long Google Cloud Storage is asked again when it does not answer, or no credentials are found; PyArrow's default
is 15 minutes."""
HDFS_NEEDS: Final = "HDFS needs Java (JAVA_HOME) and Hadoop's library libhdfs (ARROW_LIBHDFS_DIR, CLASSPATH)"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


class InvalidUrl(ValueError):
    """The text says why it is refused."""


class Place(NamedTuple):
    """A folder on a file system; `shown` is the URL without what follows `?`."""

    system: Any
    path: str
    shown: str

    def write(self, name: str, content: bytes) -> None:
        """Make a file, whole or not at all. Raises OSError."""
        target = f"{self.path}/{name}"
        if self.system.type_name in WHOLE_OR_NOT:
            with self.system.open_output_stream(target) as stream:
                stream.write(content)
            return
        folder, _, last = target.rpartition("/")
        self.system.create_dir(folder, recursive=True)
        with self.system.open_output_stream(f"{folder}/_new-{last}") as stream:
            stream.write(content)
        self.system.move(f"{folder}/_new-{last}", target)

    def read(self, name: str) -> bytes:
        """Raises OSError."""
        with self.system.open_input_stream(f"{self.path}/{name}") as stream:
            content: bytes = stream.readall()
        return content

    def list_files(self, folder: str) -> list[Any]:
        """The FileInfo of each entry of a folder, in the order of their names; none if it is missing. Raises
        OSError."""
        selector = fs.FileSelector(f"{self.path}/{folder}", allow_not_found=True)
        return sorted(self.system.get_file_info(selector), key=lambda each: each.base_name)


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def open_place(url: str) -> Place:
    """Raises InvalidUrl, OSError."""
    found = _URL.match(url)
    scheme = found[1].lower() if found else ""
    if scheme not in SCHEMES:
        raise InvalidUrl(f"{url!r}, which is not a URL of a known kind: {', '.join(SCHEMES)}")
    if scheme != "hdfs" and "@" in url.partition("?")[0].removeprefix(f"{found[0]}/anonymous@" if found else ""):
        raise InvalidUrl("a URL with credentials; give them in the environment (AWS_ACCESS_KEY_ID …)")
    text = re.sub("^s3a:", "s3:", url, flags=re.IGNORECASE)
    if scheme in ("gs", "gcs") and "retry_limit_seconds=" not in text:
        text += f"{'&' if '?' in text else '?'}retry_limit_seconds={GCS_RETRY_S}"
    try:
        system, path = fs.FileSystem.from_uri(text)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidUrl(f"{url!r}: {error}") from None
    except OSError as error:
        if scheme not in ("hdfs", "viewfs"):
            raise
        cause = str(error).partition("\n")[0]
        raise OSError(error.errno or errno.EIO, f"{cause}; {HDFS_NEEDS}", url) from None
    return Place(system, path.rstrip("/"), url.partition("?")[0].rstrip("/"))


def below(url: str, name: str) -> str:
    """The URL of a folder in a folder."""
    folder, mark, options = url.partition("?")
    return f"{folder.rstrip('/')}/{name}{mark}{options}"
