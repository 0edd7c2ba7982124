"""rowfunctions: functions that give rows of several columns; nothing that they would tell is known here but keywords.

A line is `name(number of arguments) column type, …`.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Final

from dpsql.catalog.kinds import Kind, named, record

_EMPTY: Final = """
aclexplode(1) grantor oid, grantee oid, privilege_type text, is_grantable bool
pg_options_to_table(1) option_name text, option_value text
pg_available_extensions(0) name name, default_version text, comment text
pg_available_extension_versions(0) name name, version text, superuser bool, trusted bool, relocatable bool, \
schema name, requires _name, comment text
pg_partition_tree(1) relid regclass, parentrelid regclass, isleaf bool, level int4
pg_sequence_parameters(1) start_value int8, minimum_value int8, maximum_value int8, increment int8, cycle_option bool, \
cache_size int8, data_type oid
pg_identify_object(3) type text, schema text, name text, identity text
pg_identify_object_as_address(3) type text, object_names _text, object_args _text
pg_get_object_address(3) classid oid, objid oid, objsubid int4
pg_get_publication_tables(1) pubid oid, relid oid, attrs int2vector, qual pg_node_tree
pg_prepared_statement(0) name text, statement text, prepare_time timestamptz, parameter_types _regtype, \
result_types _regtype, from_sql bool, generic_plans int8, custom_plans int8
pg_cursor(0) name text, statement text, is_holdable bool, is_binary bool, is_scrollable bool, creation_time timestamptz
pg_config(0) name text, setting text
pg_ls_waldir(0) name text, size int8, modification timestamptz
pg_ls_logdir(0) name text, size int8, modification timestamptz
pg_event_trigger_dropped_objects(0) classid oid, objid oid, objsubid int4
"""
_LINE: Final = re.compile(r"(\w+)\((\d)\) (.*)")


@cache
def empty_functions() -> Mapping[str, tuple[int, Kind]]:
    """Functions whose rows are none, by name: how many arguments they take, and the record that a row would be."""
    found = {}
    for line in filter(None, _EMPTY.splitlines()):
        match = _LINE.fullmatch(line)
        if match is None:
            raise TypeError(f"not a function: {line}")
        fields = [field.strip().split() for field in match[3].split(",")]
        found[match[1]] = int(match[2]), record(*((name, named(kind)) for name, kind in fields))
    return found


RELATION_FUNCTIONS: Final[Mapping[str, str]] = {
    "pg_show_all_settings": "pg_settings",
    "pg_timezone_names": "pg_timezone_names",
    "pg_timezone_abbrevs": "pg_timezone_abbrevs",
}
"""Functions that give the rows of a relation of pg_catalog."""
