"""functions: the functions that catalog queries may call: argument types, result, and what DuckDB computes for it.

A line is `name(types) result = SQL`, or goes on behind a backslash; {0} is the first argument, {path} the schemas
that names are looked for in.
`any`, `anyarray` and `anyelement` are polymorphic as in PostgreSQL, `...` repeats the type before it, and `setof`
marks a list that is taken apart into rows. What depends on data (sizes, statistics) is NULL, always.
A function that gives rows of several columns has a line `name(number of arguments) column type, …`; such a function
gives no rows here, keywords apart.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from dpsql.catalog.relations import UNKNOWN, Kind, array_of, kind_of, named, record
from dpsql.catalog.typed import implicit

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
_ROW_LINE: Final = re.compile(r"(\w+)\((\d)\) (.*)")


@cache
def empty_functions() -> Mapping[str, tuple[int, Kind]]:
    """Functions whose rows are none, by name: how many arguments they take, and the record that a row would be."""
    found = {}
    for line in filter(None, _EMPTY.splitlines()):
        match = _ROW_LINE.fullmatch(line)
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


_TEXTS: Final = """
lower(text) text = lower({0})
upper(text) text = upper({0})
length(text) int4 = CAST(length({0}) AS INTEGER)
char_length(text) int4 = CAST(length({0}) AS INTEGER)
character_length(text) int4 = CAST(length({0}) AS INTEGER)
octet_length(text) int4 = CAST(strlen({0}) AS INTEGER)
substr(text, int4) text = catalog_substring({0}, {1}, NULL)
substr(text, int4, int4) text = catalog_substring({0}, {1}, {2})
substring(text, int4) text = catalog_substring({0}, {1}, NULL)
substring(text, int4, int4) text = catalog_substring({0}, {1}, {2})
substring(text, text) text = CASE WHEN NOT regexp_matches({0}, {1}, 's') THEN NULL \
WHEN regexp_matches({1}, '(^|[^\\\\])(\\\\\\\\)*[(]([^?]|$)') THEN regexp_extract({0}, {1} || '()', 1, 's') \
ELSE regexp_extract({0}, {1}, 0, 's') END
replace(text, text, text) text = catalog_replace({0}, {1}, {2})
btrim(text) text = trim({0}, ' ')
btrim(text, text) text = trim({0}, {1})
ltrim(text) text = ltrim({0}, ' ')
ltrim(text, text) text = ltrim({0}, {1})
rtrim(text) text = rtrim({0}, ' ')
rtrim(text, text) text = rtrim({0}, {1})
left(text, int4) text = left({0}, {1})
right(text, int4) text = right({0}, {1})
reverse(text) text = reverse({0})
repeat(text, int4) text = catalog_repeat({0}, {1})
lpad(text, int4) text = lpad({0}, least({1}, 10000), ' ')
lpad(text, int4, text) text = lpad({0}, least({1}, 10000), {2})
rpad(text, int4) text = rpad({0}, least({1}, 10000), ' ')
rpad(text, int4, text) text = rpad({0}, least({1}, 10000), {2})
strpos(text, text) int4 = CAST(strpos({0}, {1}) AS INTEGER)
position(text, text) int4 = CAST(strpos({0}, {1}) AS INTEGER)
split_part(text, text, int4) text = split_part({0}, {1}, {2})
starts_with(text, text) bool = starts_with({0}, {1})
translate(text, text, text) text = translate({0}, {1}, {2})
ascii(text) int4 = ascii({0})
chr(int4) text = chr({0})
md5(text) text = md5({0})
concat(any...) text = catalog_join([{all}], '', NULL)
concat_ws(text, any...) text = catalog_join([{rest}], {0}, NULL)
format(text) text = catalog_format({0}, [])
format(text, any...) text = catalog_format({0}, [{rest}])
quote_ident(text) text = catalog_quote_ident({0})
quote_literal(text) text = catalog_quote_literal({0})
quote_nullable(text) text = coalesce(catalog_quote_literal({0}), 'NULL')
parse_ident(text) _text = catalog_parse_ident({0})
parse_ident(text, bool) _text = catalog_parse_ident({0})
regexp_replace(text, text, text) text = regexp_replace(catalog_replaceable({0}, {2}), {1}, {2})
regexp_replace(text, text, text, text) text = regexp_replace(catalog_replaceable({0}, {2}), {1}, {2}, \
CASE WHEN contains({3}, 'g') THEN 'g' END)
regexp_split_to_array(text, text) _text = string_split_regex(catalog_text({0}), {1})
string_to_array(text, text) _text = catalog_split({0}, {1})
textcat(text, text) text = catalog_concat({0}, {1})
initcap(text) text = catalog_initcap({0})
bit_length(text) int4 = CAST(8 * strlen({0}) AS INTEGER)
length(bytea) int4 = CAST(octet_length({0}) AS INTEGER)
octet_length(bytea) int4 = CAST(octet_length({0}) AS INTEGER)
encode(bytea, text) text = catalog_encode({0}, {1})
decode(text, text) bytea = catalog_decode({0}, {1})
md5(bytea) text = catalog_md5({0})
convert_from(bytea, name) text = decode({0})
convert_to(text, name) bytea = encode({0})
num_nulls(any...) int4 = len(list_filter([{all}], lambda e: e IS NULL))
num_nonnulls(any...) int4 = len(list_filter([{all}], lambda e: e IS NOT NULL))
json_typeof(json) text = catalog_json_type({0})
jsonb_typeof(jsonb) text = catalog_json_type({0})
json_array_length(json) int4 = json_array_length({0})
jsonb_array_length(jsonb) int4 = json_array_length({0})
jsonb_pretty(jsonb) text = {0}
to_hex(int8) text = lower(to_hex({0}))
"""
_NUMBERS: Final = """
abs(int4) int4 = abs({0})
abs(int8) int8 = abs({0})
abs(numeric) numeric = abs({0})
abs(float8) float8 = abs({0})
ceil(numeric) numeric = ceil({0})
ceil(float8) float8 = ceil({0})
ceiling(numeric) numeric = ceil({0})
floor(numeric) numeric = floor({0})
floor(float8) float8 = floor({0})
round(numeric) numeric = round({0})
round(float8) float8 = round_even({0}, 0)
round(numeric, int4) numeric = round({0}, {1})
mod(int4, int4) int4 = ({0} % {1})
mod(int8, int8) int8 = ({0} % {1})
sqrt(float8) float8 = sqrt({0})
power(float8, float8) float8 = power({0}, {1})
"""
_ARRAYS: Final = """
array_length(anyarray, int4) int4 = CASE WHEN {1} = 1 AND len({0}) > 0 THEN CAST(len({0}) AS INTEGER) END
array_upper(anyarray, int4) int4 = CASE WHEN {1} = 1 AND len({0}) > 0 THEN CAST(len({0}) AS INTEGER){vector} END
array_lower(anyarray, int4) int4 = CASE WHEN {1} = 1 AND len({0}) > 0 THEN CAST(1 AS INTEGER){vector} END
array_ndims(anyarray) int4 = CASE WHEN len({0}) > 0 THEN CAST(1 AS INTEGER) END
cardinality(anyarray) int4 = CAST(len({0}) AS INTEGER)
array_position(anyarray, anyelement) int4 = CAST(list_position({0}, {1}) AS INTEGER){vector}
array_remove(anyarray, anyelement) anyarray = list_filter({0}, lambda e: e IS DISTINCT FROM {1})
array_append(anyarray, anyelement) anyarray = list_append({0}, {1})
array_prepend(anyelement, anyarray) anyarray = list_prepend({0}, {1})
array_cat(anyarray, anyarray) anyarray = list_transform([struct_pack(a := {0}, b := {1})], \
lambda s: CASE WHEN catalog_fits(coalesce(len(s.a), 0) + coalesce(len(s.b), 0)) THEN list_concat(s.a, s.b) END)[1]
array_positions(anyarray, anyelement) _int4 = list_filter(range(1, len({0}) + 1), \
lambda i: {0}[i] IS NOT DISTINCT FROM {1})
array_replace(anyarray, anyelement, anyelement) anyarray = list_transform({0}, \
lambda e: CASE WHEN e IS NOT DISTINCT FROM {1} THEN {2} ELSE e END)
array_dims(anyarray) text = CASE WHEN len({0}) > 0 THEN '[1:' || len({0}) || ']' END
array_to_string(anyarray, text) text = catalog_join({texts}, {1}, NULL)
array_to_string(anyarray, text, text) text = catalog_join({texts}, {1}, {2})
unnest(anyarray) setof anyelement = {0}
generate_subscripts(anyarray, int4) setof int4 = CASE WHEN {1} = 1 THEN {subscripts} ELSE [] END
generate_series(int4, int4) setof int4 = catalog_series({0}, {1}, 1)
generate_series(int4, int4, int4) setof int4 = catalog_series({0}, {1}, {2})
generate_series(int8, int8) setof int8 = catalog_series({0}, {1}, 1)
generate_series(int8, int8, int8) setof int8 = catalog_series({0}, {1}, {2})
regexp_split_to_table(text, text) setof text = string_split_regex(catalog_text({0}), {1})
string_to_table(text, text) setof text = catalog_split({0}, {1})
regexp_matches(text, text) setof _text = {matches}[:1]
regexp_matches(text, text, text) setof _text = CASE WHEN contains({2}, 'g') THEN {matches} ELSE {matches}[:1] END
"""
_SESSION: Final = """
version() text = {version}
current_database() name = {database}
current_catalog() name = {database}
current_user() name = {user}
current_role() name = {user}
session_user() name = {user}
user() name = {user}
current_schema() name = {schema}
current_schemas(bool) _name = CASE WHEN {0} THEN {schemas} ELSE {named} END
now() timestamptz = {now}
current_timestamp() timestamptz = {now}
clock_timestamp() timestamptz = {now}
statement_timestamp() timestamptz = {now}
transaction_timestamp() timestamptz = {now}
localtimestamp() timestamp = {now}
current_date() date = CAST({now} AS DATE)
pg_postmaster_start_time() timestamptz = NULL
pg_conf_load_time() timestamptz = NULL
pg_backend_pid() int4 = 0
pg_is_in_recovery() bool = false
pg_is_wal_replay_paused() bool = false
txid_current() int8 = 1
pg_current_xact_id() xid8 = '1'
pg_current_wal_lsn() pg_lsn = NULL
pg_last_wal_receive_lsn() pg_lsn = NULL
pg_last_wal_replay_lsn() pg_lsn = NULL
pg_last_xact_replay_timestamp() timestamptz = NULL
pg_export_snapshot() text = '00000001-00000001-1'
pg_jit_available() bool = false
pg_trigger_depth() int4 = 0
pg_safe_snapshot_blocking_pids(int4) _int4 = []
pg_try_advisory_xact_lock(int8) bool = true
pg_advisory_xact_lock(int8) void = ''
pg_advisory_lock_shared(int8) void = ''
pg_advisory_unlock_shared(int8) bool = false
pg_encoding_max_length(int4) int4 = 4
pg_settings_get_flags(text) _text = []
pg_notification_queue_usage() float8 = 0
getpgusername() name = {user}
pg_reload_conf() bool = false
age(xid) int4 = 0
txid_current_if_assigned() int8 = NULL
pg_current_xact_id_if_assigned() xid8 = NULL
inet_client_addr() inet = NULL
inet_client_port() int4 = NULL
inet_server_addr() inet = NULL
inet_server_port() int4 = NULL
pg_my_temp_schema() oid = 0
pg_is_other_temp_schema(oid) bool = false
pg_client_encoding() name = 'UTF8'
getdatabaseencoding() name = 'UTF8'
pg_encoding_to_char(int4) name = catalog_encoding({0})
pg_char_to_encoding(name) int4 = catalog_encoding_number({0})
pg_advisory_unlock_all() void = ''
pg_try_advisory_lock(int8) bool = true
pg_advisory_lock(int8) void = ''
pg_advisory_unlock(int8) bool = false
pg_cancel_backend(int4) bool = false
pg_terminate_backend(int4) bool = false
current_setting(text) text = {setting}
current_setting(text, bool) text = {setting}
pg_listening_channels() setof text = []
pg_blocking_pids(int4) _int4 = []
"""
_OBJECTS: Final = """
format_type(oid, int4) text = catalog_format_type({0}, {1}, {path})
pg_get_userbyid(oid) name = {role}
pg_get_expr(pg_node_tree, oid) text = {0}
pg_get_expr(pg_node_tree, oid, bool) text = {0}
pg_get_constraintdef(oid) text = catalog_constraint({0}, {path})
pg_get_constraintdef(oid, bool) text = catalog_constraint({0}, {path})
pg_get_indexdef(oid) text = catalog_index({0}, 0, {path})
pg_get_indexdef(oid, int4, bool) text = catalog_index({0}, {1}, {path})
pg_get_function_result(oid) text = catalog_function_result({0}, {path})
pg_get_function_arguments(oid) text = catalog_function_arguments({0}, {path})
pg_get_function_identity_arguments(oid) text = catalog_function_arguments({0}, {path})
pg_get_function_arg_default(oid, int4) text = NULL
pg_get_function_sqlbody(oid) text = NULL
pg_get_functiondef(oid) text = NULL
pg_get_viewdef(oid) text = catalog_view({0}, {path})
pg_get_viewdef(oid, bool) text = catalog_view({0}, {path})
pg_get_viewdef(oid, int4) text = catalog_view({0}, {path})
pg_get_ruledef(oid) text = NULL
pg_get_ruledef(oid, bool) text = NULL
pg_get_triggerdef(oid) text = NULL
pg_get_triggerdef(oid, bool) text = NULL
pg_get_partkeydef(oid) text = NULL
pg_get_partition_constraintdef(oid) text = NULL
pg_get_statisticsobjdef(oid) text = NULL
pg_get_statisticsobjdef_columns(oid) text = NULL
pg_get_statisticsobjdef_expressions(oid) _text = NULL
pg_get_serial_sequence(text, text) text = NULL
pg_get_replica_identity_index(regclass) regclass = NULL
pg_sequence_last_value(regclass) int8 = NULL
pg_tablespace_location(oid) text = ''
pg_tablespace_databases(oid) setof oid = []
pg_relation_filenode(regclass) oid = NULL
pg_relation_filepath(regclass) text = NULL
pg_relation_is_publishable(regclass) bool = false
pg_relation_is_updatable(regclass, bool) int4 = 0
pg_column_is_updatable(regclass, int2, bool) bool = false
pg_partition_ancestors(regclass) setof regclass = []
pg_partition_root(regclass) regclass = NULL
pg_column_size(any) int4 = NULL
pg_relation_size(regclass) int8 = NULL
pg_relation_size(regclass, text) int8 = NULL
pg_table_size(regclass) int8 = NULL
pg_total_relation_size(regclass) int8 = NULL
pg_indexes_size(regclass) int8 = NULL
pg_database_size(oid) int8 = NULL
pg_database_size(name) int8 = NULL
pg_tablespace_size(oid) int8 = NULL
pg_tablespace_size(name) int8 = NULL
pg_relation_filenode(oid) oid = NULL
pg_collation_for(any) text = NULL
pg_column_compression(any) text = NULL
pg_collation_actual_version(oid) text = NULL
pg_database_collation_actual_version(oid) text = NULL
pg_xact_commit_timestamp(xid) timestamptz = NULL
pg_describe_object(oid, oid, int4) text = catalog_describe({1}, {path})
pg_filenode_relation(oid, oid) regclass = NULL
currval(regclass) int8 = NULL
lastval() int8 = NULL
oidvectortypes(oidvector) text = catalog_types({0}, {path})
pg_indexam_has_property(oid, text) bool = CASE WHEN {1} IN ('can_order', 'can_unique', 'can_multi_col', \
'can_exclude', 'can_include') THEN {0} = 403 END
pg_index_has_property(regclass, text) bool = CASE WHEN {1} IN ('clusterable', 'index_scan', 'bitmap_scan', \
'backward_scan') THEN true END
pg_index_column_has_property(regclass, int4, text) bool = CASE WHEN {2} IN ('asc', 'nulls_last', 'orderable', \
'returnable', 'search_array', 'search_nulls') THEN true \
WHEN {2} IN ('desc', 'nulls_first', 'distance_orderable') THEN false END
pg_size_pretty(int8) text = catalog_size({0})
pg_size_pretty(numeric) text = catalog_size(CAST({0} AS BIGINT))
obj_description(oid) text = catalog_description({0}, 0, NULL)
obj_description(oid, name) text = catalog_description({0}, 0, {1})
col_description(oid, int4) text = catalog_description({0}, {1}, 'pg_class')
shobj_description(oid, name) text = NULL
pg_table_is_visible(oid) bool = catalog_visible('table', {0}, {path})
pg_type_is_visible(oid) bool = catalog_visible('type', {0}, {path})
pg_function_is_visible(oid) bool = catalog_visible('function', {0}, {path})
pg_collation_is_visible(oid) bool = catalog_visible('collation', {0}, {path})
pg_opclass_is_visible(oid) bool = catalog_visible('opclass', {0}, {path})
pg_opfamily_is_visible(oid) bool = catalog_visible('opfamily', {0}, {path})
pg_ts_parser_is_visible(oid) bool = catalog_visible('ts_parser', {0}, {path})
pg_operator_is_visible(oid) bool = catalog_visible('operator', {0}, {path})
pg_conversion_is_visible(oid) bool = catalog_visible('conversion', {0}, {path})
pg_statistics_obj_is_visible(oid) bool = catalog_visible('statistics', {0}, {path})
pg_ts_config_is_visible(oid) bool = catalog_visible('ts_config', {0}, {path})
pg_ts_dict_is_visible(oid) bool = catalog_visible('ts_dict', {0}, {path})
pg_ts_template_is_visible(oid) bool = catalog_visible('ts_template', {0}, {path})
to_regclass(text) regclass = catalog_look_up('regclass', {0}, {path})
to_regtype(text) regtype = catalog_look_up('regtype', {0}, {path})
to_regproc(text) regproc = catalog_look_up('regproc', {0}, {path})
to_regprocedure(text) regprocedure = catalog_look_up('regprocedure', {0}, {path})
to_regnamespace(text) regnamespace = catalog_look_up('regnamespace', {0}, {path})
to_regcollation(text) regcollation = catalog_look_up('regcollation', {0}, {path})
to_regoper(text) regoper = NULL
to_regoperator(text) regoperator = NULL
to_regrole(text) regrole = catalog_look_up('regrole', {0}, {path})
acldefault(char, oid) _aclitem = NULL
"""
_PRIVILEGES: Final = """
has_table_privilege(regclass, text) bool = catalog_privilege('table', {0}, {1})
has_any_column_privilege(regclass, text) bool = catalog_privilege('table', {0}, {1})
has_column_privilege(regclass, any, text) bool = catalog_privilege('table', {0}, {2})
has_sequence_privilege(regclass, text) bool = catalog_privilege('sequence', {0}, {1})
has_schema_privilege(regnamespace, text) bool = catalog_privilege('schema', {0}, {1})
has_function_privilege(regprocedure, text) bool = catalog_privilege('function', {0}, {1})
has_type_privilege(regtype, text) bool = catalog_privilege('type', {0}, {1})
has_database_privilege(any, text) bool = catalog_privilege('database', 0, {1})
has_language_privilege(any, text) bool = catalog_privilege('language', 0, {1})
has_tablespace_privilege(any, text) bool = catalog_privilege('tablespace', 0, {1})
has_foreign_data_wrapper_privilege(any, text) bool = catalog_privilege('wrapper', 0, {1})
has_server_privilege(any, text) bool = catalog_privilege('server', 0, {1})
has_parameter_privilege(text, text) bool = false
pg_has_role(any, text) bool = catalog_is_role(CAST({0} AS VARCHAR), {user}, {role_oid})
pg_has_role(any, any, text) bool = catalog_is_role(CAST({1} AS VARCHAR), {user}, {role_oid})
row_security_active(regclass) bool = false
"""
_TIMES: Final = """
extract(text, timestamptz) numeric = CAST(date_part({0}, {1}) AS DECIMAL(38, 6))
extract(text, timestamp) numeric = CAST(date_part({0}, {1}) AS DECIMAL(38, 6))
extract(text, date) numeric = CAST(date_part({0}, {1}) AS DECIMAL(38, 6))
extract(text, interval) numeric = CAST(date_part({0}, {1}) AS DECIMAL(38, 6))
to_char(timestamptz, text) text = catalog_moment({0}, 'UTC', {1})
to_char(timestamp, text) text = catalog_moment({0}, '', {1})
date_part(text, timestamptz) float8 = CAST(date_part({0}, {1}) AS DOUBLE)
date_trunc(text, timestamptz) timestamptz = CAST(date_trunc({0}, {1}) AS TIMESTAMP)
date_trunc(text, timestamp) timestamp = CAST(date_trunc({0}, {1}) AS TIMESTAMP)
age(timestamptz, timestamptz) interval = age({0}, {1})
age(timestamp, timestamp) interval = age({0}, {1})
make_date(int4, int4, int4) date = make_date({0}, {1}, {2})
to_timestamp(float8) timestamptz = make_timestamp(CAST({0} * 1000000 AS BIGINT))
isfinite(timestamp) bool = isfinite({0})
timezone(text, timestamptz) timestamp = {1}
timezone(text, timestamp) timestamptz = {1}
"""
_AGGREGATES: Final = """
count(any) int8 = count({0})
sum(int2) int8 = CAST(sum({0}) AS BIGINT)
sum(int4) int8 = CAST(sum({0}) AS BIGINT)
sum(int8) numeric = sum({0})
sum(numeric) numeric = sum({0})
sum(float4) float4 = CAST(sum({0}) AS FLOAT)
sum(float8) float8 = sum({0})
avg(numeric) numeric = CAST(avg({0}) AS DECIMAL(38, 10))
avg(float8) float8 = avg({0})
bool_and(bool) bool = bool_and({0})
bool_or(bool) bool = bool_or({0})
every(bool) bool = bool_and({0})
bit_and(int4) int4 = bit_and({0})
bit_or(int4) int4 = bit_or({0})
any_value(any) any0 = any_value({0})
string_agg(text, text) text = string_agg({0}, {1})
array_agg(any) anyarray0 = list({0})
min(any) any0 = min({0})
max(any) any0 = max({0})
"""
_WINDOWS: Final = """
row_number() int8 = row_number()
rank() int8 = rank()
dense_rank() int8 = dense_rank()
ntile(int4) int4 = ntile({0})
lag(any) any0 = lag({0})
lead(any) any0 = lead({0})
first_value(any) any0 = first_value({0})
last_value(any) any0 = last_value({0})
"""
_LINE: Final = re.compile(r"(\w+)\(([^)]*)\) (setof )?(\w+) = (.*)")


@dataclass(frozen=True)
class CatalogFunction:
    """A function for certain argument types.

    Attributes:
        name: Its name.
        args: The names of its arguments' types; any, anyarray and anyelement are polymorphic.
        repeats: True where the last argument may come several times.
        result: The name of the result's type, or a polymorphic one.
        is_set: True where it gives rows.
        sql: The template.
    """

    name: str
    args: tuple[str, ...]
    repeats: bool
    result: str
    is_set: bool
    sql: str

    def takes(self, kinds: Sequence[Kind]) -> bool:
        """True if it can be called with arguments of these types."""
        if len(kinds) < len(self.args) or (len(kinds) > len(self.args) and not self.repeats):
            return False
        wanted = [*self.args, *[self.args[-1]] * (len(kinds) - len(self.args))] if self.args else []
        return all(_takes(kind, name) for kind, name in zip(kinds, wanted, strict=True))

    def exact(self, kinds: Sequence[Kind]) -> int:
        """How many arguments have the very types."""
        return sum(kind.name == name for kind, name in zip(kinds, self.args, strict=False))

    def texts(self, kinds: Sequence[Kind]) -> int:
        """How many arguments without a type are taken as text."""
        return sum(kind == UNKNOWN and name == "text" for kind, name in zip(kinds, self.args, strict=False))


def _takes(kind: Kind, name: str) -> bool:
    if name in ("any", "anyelement"):
        return True
    if name == "anyarray":
        return kind.is_array or kind == UNKNOWN
    return implicit(kind, named(name))


def _read(text: str) -> Mapping[str, tuple[CatalogFunction, ...]]:
    found: dict[str, list[CatalogFunction]] = {}
    for line in filter(None, text.splitlines()):
        match = _LINE.fullmatch(line)
        if match is None:
            raise TypeError(f"not a function: {line}")
        name, args, is_set, result, sql = match.groups()
        listed = tuple(part.strip() for part in args.split(",") if part.strip())
        repeats = bool(listed) and listed[-1].endswith("...")
        plain = tuple(part.removesuffix("...") for part in listed)
        found.setdefault(name, []).append(CatalogFunction(name, plain, repeats, result, bool(is_set), sql))
    return {name: tuple(functions) for name, functions in found.items()}


@cache
def functions() -> Mapping[str, tuple[CatalogFunction, ...]]:
    """Plain functions by name."""
    return _read(_TEXTS + _NUMBERS + _ARRAYS + _SESSION + _OBJECTS + _with_users(_PRIVILEGES) + _TIMES)


def _with_users(text: str) -> str:
    """Each privilege function also with a user before its other arguments; nobody's are told but one's own."""
    lines = []
    for line in text.strip().splitlines():
        lines.append(line)
        if line.startswith("has_"):
            shifted = re.sub(r"\{([0-2])\}", lambda match: f"{{{int(match[1]) + 1}}}", line)
            lines.append(re.sub(r"\(", "(any, ", shifted, count=1))
    return "\n" + "\n".join(lines) + "\n"


@cache
def aggregates() -> Mapping[str, tuple[CatalogFunction, ...]]:
    """Aggregates by name."""
    return _read(_AGGREGATES)


@cache
def window_functions() -> Mapping[str, tuple[CatalogFunction, ...]]:
    """Window functions by name."""
    return _read(_WINDOWS)


def chosen(candidates: Sequence[CatalogFunction], kinds: Sequence[Kind]) -> CatalogFunction | None:
    """The function that a call with arguments of these types means; None where none fits.

    Of those that take as many of the very types, a constant without a type prefers the one that takes it as text.
    """
    fitting = [function for function in candidates if function.takes(kinds)]
    return max(fitting, key=lambda function: (function.exact(kinds), function.texts(kinds)), default=None)


def result_kind(function: CatalogFunction, kinds: Sequence[Kind]) -> Kind:
    """The type of a call's result."""
    match function.result:
        case "anyelement":
            return kind_of(_array(kinds).element)
        case "anyarray":
            return _array(kinds)
        case "any0":
            return _minimum(kinds[0])
        case "anyarray0":
            return array_of(kinds[0])
        case name:
            return named(name)


def _array(kinds: Sequence[Kind]) -> Kind:
    found = next(kind for kind in kinds if kind.is_array)
    return array_of(kind_of(found.element)) if found.is_vector else found


def _minimum(kind: Kind) -> Kind:
    """Names have no least of their own: it is a text."""
    return named("text") if kind.name in ("name", "varchar", "char", "unknown") else kind


def argument_kinds(function: CatalogFunction, kinds: Sequence[Kind]) -> list[Kind]:
    """The types that a call's arguments are cast to."""
    wanted = [*function.args, *[function.args[-1]] * (len(kinds) - len(function.args))] if function.args else []
    arrays = [kind for kind in kinds if kind.is_array]
    found = []
    for kind, name in zip(kinds, wanted, strict=True):
        if name == "anyarray":
            found.append(kind if kind.is_array else named("_text"))
        elif name == "anyelement":
            found.append(kind_of(arrays[0].element) if arrays else kind)
        elif name == "any":
            found.append(named("text") if kind == UNKNOWN else kind)
        else:
            found.append(named(name))
    return found
