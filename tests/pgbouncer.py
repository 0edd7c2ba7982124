"""The pooler pgbouncer, of Debian's package, in transaction mode, where it is installed."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

INSTALLED = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

_INI = """
[databases]
{name} = {target}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
pool_mode = transaction
auth_type = {auth}
auth_file = {folder}/users.txt
ignore_startup_parameters = extra_float_digits
server_reset_query = DISCARD ALL
{further}
"""


@contextmanager
def pgbouncer(
    name: str, target: str, *, auth: str = "scram-sha-256", further: str = "", user: str = "nobody"
) -> Iterator[int]:
    """Run it before a database, and yield its port; user ana has the password "secret".

    It refuses to run as root, and then runs as another user of the system.
    """
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        Path(folder, "users.txt").write_text('"ana" "secret"\n"postgres" ""\n', encoding="utf-8")
        ini = Path(folder, "pgbouncer.ini")
        ini.write_text(
            _INI.format(name=name, target=target, port=port, auth=auth, folder=folder, further=further),
            encoding="utf-8",
        )
        instead = ["-u", user] if os.geteuid() == 0 else []
        command = [str(INSTALLED), *instead, str(ini)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as pooler:
            try:
                assert pooler.stderr is not None
                said = []
                for line in pooler.stderr:
                    said.append(line)
                    if "process up" in line:
                        break
                else:
                    raise AssertionError("".join(said))
                yield port
            finally:
                pooler.terminate()
