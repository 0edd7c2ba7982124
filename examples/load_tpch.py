"""Write the TPC-H benchmark's data into a DuckDB file, for policies/tpch.toml.

    python examples/load_tpch.py [TARGET.duckdb] [--scale-factor 0.01]

The data is made by tpchgen-cli, of the PyPI package of that name: the same rows each time. Scale factor 1 has 150,000
customers, 1.5 million orders and 6 million lines.
"""

import argparse
import subprocess
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

DEFAULT_TARGET = Path(__file__).parent.parent / "policies" / "tpch.duckdb"

# Clause 1.4 of the specification; what is a variable or fixed text there is VARCHAR here.
TABLES = {
    "region": "r_regionkey INTEGER PRIMARY KEY, r_name VARCHAR NOT NULL, r_comment VARCHAR NOT NULL",
    "nation": """n_nationkey INTEGER PRIMARY KEY, n_name VARCHAR NOT NULL, n_regionkey INTEGER NOT NULL,
        n_comment VARCHAR NOT NULL""",
    "part": """p_partkey INTEGER PRIMARY KEY, p_name VARCHAR NOT NULL, p_mfgr VARCHAR NOT NULL,
        p_brand VARCHAR NOT NULL, p_type VARCHAR NOT NULL, p_size INTEGER NOT NULL, p_container VARCHAR NOT NULL,
        p_retailprice DECIMAL(15, 2) NOT NULL, p_comment VARCHAR NOT NULL""",
    "supplier": """s_suppkey INTEGER PRIMARY KEY, s_name VARCHAR NOT NULL, s_address VARCHAR NOT NULL,
        s_nationkey INTEGER NOT NULL, s_phone VARCHAR NOT NULL, s_acctbal DECIMAL(15, 2) NOT NULL,
        s_comment VARCHAR NOT NULL""",
    "partsupp": """ps_partkey INTEGER NOT NULL, ps_suppkey INTEGER NOT NULL, ps_availqty INTEGER NOT NULL,
        ps_supplycost DECIMAL(15, 2) NOT NULL, ps_comment VARCHAR NOT NULL, PRIMARY KEY (ps_partkey, ps_suppkey)""",
    "customer": """c_custkey INTEGER PRIMARY KEY, c_name VARCHAR NOT NULL, c_address VARCHAR NOT NULL,
        c_nationkey INTEGER NOT NULL, c_phone VARCHAR NOT NULL, c_acctbal DECIMAL(15, 2) NOT NULL,
        c_mktsegment VARCHAR NOT NULL, c_comment VARCHAR NOT NULL""",
    "orders": """o_orderkey BIGINT PRIMARY KEY, o_custkey INTEGER NOT NULL, o_orderstatus VARCHAR NOT NULL,
        o_totalprice DECIMAL(15, 2) NOT NULL, o_orderdate DATE NOT NULL, o_orderpriority VARCHAR NOT NULL,
        o_clerk VARCHAR NOT NULL, o_shippriority INTEGER NOT NULL, o_comment VARCHAR NOT NULL""",
    "lineitem": """l_orderkey BIGINT NOT NULL, l_partkey INTEGER NOT NULL, l_suppkey INTEGER NOT NULL,
        l_linenumber INTEGER NOT NULL, l_quantity DECIMAL(15, 2) NOT NULL, l_extendedprice DECIMAL(15, 2) NOT NULL,
        l_discount DECIMAL(15, 2) NOT NULL, l_tax DECIMAL(15, 2) NOT NULL, l_returnflag VARCHAR NOT NULL,
        l_linestatus VARCHAR NOT NULL, l_shipdate DATE NOT NULL, l_commitdate DATE NOT NULL,
        l_receiptdate DATE NOT NULL, l_shipinstruct VARCHAR NOT NULL, l_shipmode VARCHAR NOT NULL,
        l_comment VARCHAR NOT NULL, PRIMARY KEY (l_orderkey, l_linenumber)""",
}


def load(target: Path, scale_factor: float) -> int:
    """Write the eight tables into a new DuckDB file, in place of an earlier one.

    Args:
        target: The file.
        scale_factor: The benchmark's size; 1 is about a gigabyte.

    Returns:
        The number of lines of orders.
    """
    draft = target.with_name(f"{target.name}.partial")
    draft.unlink(missing_ok=True)
    with TemporaryDirectory(dir=target.parent) as folder, duckdb.connect(str(draft)) as connection:
        generate(Path(folder), scale_factor)
        for table, columns in TABLES.items():
            connection.execute(f"CREATE TABLE {table} ({columns})")
            file = connection.read_parquet(f"{folder}/{table}.parquet")
            file.insert_into(table)
        (lines,) = connection.execute("SELECT COUNT(*) FROM lineitem").fetchone() or (0,)
    draft.replace(target)
    return int(lines)


def generate(folder: Path, scale_factor: float) -> None:
    """Write one Parquet file a table into a folder."""
    program = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
    options = ["--scale-factor", str(scale_factor), "--output-dir", str(folder), "--no-progress", "--quiet"]
    subprocess.run([program, "parquet", *options], check=True)  # noqa: S603 - its arguments are a number and a folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the TPC-H benchmark's data into a DuckDB file.")
    parser.add_argument("target", type=Path, nargs="?", default=DEFAULT_TARGET, help="default: %(default)s")
    parser.add_argument("--scale-factor", type=float, default=0.01, help="default: %(default)s")
    options = parser.parse_args()
    print(f"{options.target}: {load(options.target, options.scale_factor)} rows of lineitem")
