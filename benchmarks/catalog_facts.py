"""Write the facts of PostgreSQL's own catalogs that dpsql/catalog shows, as read from a fresh PostgreSQL 15.

Facts only: names, OIDs, types and keys. Files are COPY's text format with a line of column names first.

    python benchmarks/catalog_facts.py "host=127.0.0.1 dbname=template1 user=postgres"
"""

import sys
from pathlib import Path

import psycopg

FACTS = Path(__file__).parent.parent / "dpsql" / "catalog" / "facts"

_SYSTEM = "oid < 16384"
_OFFERED = """
    oid IN (SELECT unnest(ARRAY[typinput, typoutput, typreceive, typsend, typmodin, typmodout,
        typsubscript, typanalyze]::oid[]) FROM pg_type)
    OR oid IN (SELECT amhandler FROM pg_am)
    OR pronamespace = 11 AND (prokind = 'a' AND proname IN ('count', 'sum', 'avg', 'min', 'max', 'stddev', 'variance',
       'percentile_cont', 'percentile_disc', 'mode', 'bool_and', 'bool_or', 'string_agg', 'array_agg')
    OR proname IN ('abs', 'ceil', 'floor', 'round', 'sqrt', 'exp', 'ln', 'power', 'lower', 'upper', 'length', 'substr',
       'substring', 'replace', 'btrim', 'ltrim', 'rtrim', 'concat', 'left', 'right', 'date_part', 'date_trunc', 'now',
       'version', 'current_database', 'current_schema', 'current_schemas', 'current_setting', 'set_config',
       'format_type', 'obj_description', 'col_description', 'has_table_privilege', 'pg_get_userbyid',
       'pg_table_is_visible', 'pg_backend_pid', 'quote_ident', 'array_to_string', 'generate_series'))
"""
QUERIES = {
    "pg_type": f"SELECT * FROM pg_type WHERE {_SYSTEM} ORDER BY oid",
    "pg_namespace": "SELECT oid, nspname, 10 AS nspowner FROM pg_namespace WHERE oid < 16384 ORDER BY oid",
    "pg_am": "SELECT * FROM pg_am ORDER BY oid",
    "pg_language": "SELECT * FROM pg_language WHERE oid < 16384 AND lanname <> 'plpgsql' ORDER BY oid",
    "pg_collation": "SELECT * FROM pg_collation WHERE collname IN ('default', 'C', 'POSIX') ORDER BY oid",
    "pg_cast": f"SELECT * FROM pg_cast WHERE {_SYSTEM} ORDER BY oid",
    "pg_opclass": f"SELECT * FROM pg_opclass WHERE {_SYSTEM} ORDER BY oid",
    "pg_opfamily": f"SELECT * FROM pg_opfamily WHERE {_SYSTEM} ORDER BY oid",
    "pg_range": "SELECT * FROM pg_range ORDER BY rngtypid",
    "pg_tablespace": "SELECT * FROM pg_tablespace WHERE oid < 16384 ORDER BY oid",
    "pg_ts_parser": "SELECT * FROM pg_ts_parser ORDER BY oid",
    "pg_proc": f"""SELECT oid, proname, pronamespace, proowner, prolang, procost, prorows, provariadic, prosupport,
        prokind, prosecdef, proleakproof, proisstrict, proretset, provolatile, proparallel, pronargs, pronargdefaults,
        prorettype, proargtypes, proallargtypes, proargmodes, proargnames, prosrc
        FROM pg_proc WHERE {_SYSTEM} AND ({_OFFERED}) ORDER BY oid""",
    "pg_class": f"""SELECT oid, relname, relnamespace, reltype, relam, relhasindex, relisshared, relkind, relnatts,
        relhasrules, relhastriggers, relreplident FROM pg_class WHERE {_SYSTEM} AND relkind IN ('r', 'v', 'i')
        AND relnamespace <> 99 ORDER BY oid""",
    "pg_attribute": """SELECT attrelid, attnum, attname, atttypid, atttypmod, attnotnull, attndims, attcollation
        FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE attrelid < 16384 AND relkind IN ('r', 'v', 'i')
        AND relnamespace <> 99 AND attnum > 0 ORDER BY attrelid, attnum""",
    "pg_index": """SELECT i.* FROM pg_index i JOIN pg_class c ON c.oid = indrelid
        WHERE indexrelid < 16384 AND relnamespace <> 99 ORDER BY indexrelid""",
    "pg_constraint": f"SELECT * FROM pg_constraint WHERE {_SYSTEM} ORDER BY oid",
    "keywords": "SELECT * FROM pg_get_keywords() ORDER BY word",
    "encodings": """SELECT i AS encoding, pg_encoding_to_char(i) AS name FROM generate_series(0, 41) i
        WHERE pg_encoding_to_char(i) <> ''""",
}


def main(conninfo: str) -> None:
    FACTS.mkdir(exist_ok=True)
    with psycopg.connect(conninfo) as connection:
        for name, query in QUERIES.items():
            with connection.cursor().copy(f"COPY ({query}) TO STDOUT (HEADER)") as copied:
                (FACTS / f"{name}.tsv").write_bytes(b"".join(bytes(part) for part in copied))


if __name__ == "__main__":
    main(sys.argv[1])
