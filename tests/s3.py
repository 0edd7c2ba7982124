"""An S3 server of this machine: moto, in a process of its own, asked through real sockets."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import boto3
import pytest

from tests.waiting import wait_for


class Bucket:
    """A bucket of the server.

    Args:
        server: The server's url.
        name: The bucket's name.
    """

    def __init__(self, server: str, name: str) -> None:
        self._name, self.url = name, f"s3://{name}/clinic"
        self._client = boto3.client(
            "s3",
            endpoint_url=server,
            region_name="us-east-1",
            aws_access_key_id="tester",
            aws_secret_access_key="not a secret",
        )
        self._client.create_bucket(Bucket=name)

    def put(self, name: str, body: bytes | Path) -> None:
        """Write an object below the url."""
        content = body.read_bytes() if isinstance(body, Path) else body
        self._client.put_object(Bucket=self._name, Key=f"clinic/{name}", Body=content)

    def remove(self, name: str) -> None:
        """Remove an object."""
        self._client.delete_object(Bucket=self._name, Key=f"clinic/{name}")


@contextmanager
def s3_server() -> Iterator[str]:
    """A server without any bucket; its url."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(lambda: _answers(url))
            yield url
        finally:
            process.terminate()


def ask_there(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let a gateway's environment name the server, and nothing else of S3."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not a secret")


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except URLError:
        return False
