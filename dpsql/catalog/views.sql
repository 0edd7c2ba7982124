-- Relations of pg_catalog and information_schema that are queries over other relations, in PostgreSQL's SQL.
-- A view has the columns whose values are known; the other columns of the relation are NULL. Privileges are SELECT on
-- everything that the user sees. A name without a schema is a part of the queries after it, which write it as $name.

-- shown
c.relkind IN ('r', 'v', 'f', 'p');

-- own
n.nspname NOT IN ('pg_catalog', 'information_schema');

-- keys
SELECT r.oid AS relation, con.conname, con.connamespace, con.contype, con.conrelid, con.confrelid, con.conindid,
    con.condeferrable, con.condeferred, con.conkey, con.confkey, r.relname, n.nspname
FROM pg_constraint con JOIN pg_class r ON r.oid = con.conrelid JOIN pg_namespace n ON n.oid = r.relnamespace
WHERE con.contype IN ('p', 'u', 'f') AND $own;

-- not_nulls
SELECT n.nspname, r.relname, a.attname, n.oid::text || '_' || r.oid::text || '_' || a.attnum::text || '_not_null'
    AS conname
FROM pg_namespace n JOIN pg_class r ON r.relnamespace = n.oid JOIN pg_attribute a ON a.attrelid = r.oid
WHERE r.relkind IN ('r', 'p') AND a.attnum > 0 AND a.attnotnull
    AND $own;

-- names
SELECT c.oid AS relid, n.nspname AS schemaname, c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r';

-- pg_catalog.pg_tables
SELECT n.nspname AS schemaname, c.relname AS tablename, pg_get_userbyid(c.relowner) AS tableowner,
    c.relhasindex AS hasindexes, c.relhasrules AS hasrules, c.relhastriggers AS hastriggers,
    c.relrowsecurity AS rowsecurity
FROM pg_class c LEFT JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p');

-- pg_catalog.pg_views
SELECT n.nspname AS schemaname, c.relname AS viewname, pg_get_userbyid(c.relowner) AS viewowner,
    pg_get_viewdef(c.oid) AS definition
FROM pg_class c LEFT JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'v';

-- pg_catalog.pg_indexes
SELECT n.nspname AS schemaname, c.relname AS tablename, i.relname AS indexname,
    pg_get_indexdef(i.oid) AS indexdef
FROM pg_index x JOIN pg_class c ON c.oid = x.indrelid JOIN pg_class i ON i.oid = x.indexrelid
    LEFT JOIN pg_namespace n ON n.oid = c.relnamespace;

-- By these, clients come from names to comments; of what is counted there they tell nothing.

-- pg_catalog.pg_statio_all_tables
$names;

-- pg_catalog.pg_statio_user_tables
$names AND $own;

-- information_schema.schemata
SELECT current_database() AS catalog_name, n.nspname AS schema_name,
    pg_get_userbyid(n.nspowner) AS schema_owner FROM pg_namespace n WHERE n.nspname <> 'pg_toast';

-- information_schema.tables
SELECT current_database() AS table_catalog, n.nspname AS table_schema, c.relname AS table_name,
    CASE c.relkind WHEN 'r' THEN 'BASE TABLE' ELSE 'VIEW' END AS table_type,
    'NO' AS is_insertable_into, 'NO' AS is_typed
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE $shown AND c.relname NOT LIKE '\_pg%';

-- information_schema.views
SELECT current_database() AS table_catalog, n.nspname AS table_schema, c.relname AS table_name,
    NULL AS view_definition, 'NONE' AS check_option, 'NO' AS is_updatable, 'NO' AS is_insertable_into,
    'NO' AS is_trigger_updatable, 'NO' AS is_trigger_deletable, 'NO' AS is_trigger_insertable_into
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'v';

-- information_schema.columns
SELECT current_database() AS table_catalog, n.nspname AS table_schema, c.relname AS table_name,
    a.attname AS column_name, a.attnum AS ordinal_position,
    CASE WHEN a.attnotnull OR (t.typtype = 'd' AND t.typnotnull) THEN 'NO' ELSE 'YES' END AS is_nullable,
    CASE WHEN b.typelem <> 0 AND b.typlen = -1 THEN 'ARRAY'
        WHEN bn.nspname = 'pg_catalog' THEN format_type(b.oid, NULL) ELSE 'USER-DEFINED' END AS data_type,
    CASE WHEN b.oid IN (1042, 1043) AND t.typtypmod > 4 THEN t.typtypmod - 4 END AS character_maximum_length,
    CASE WHEN b.oid IN (1042, 1043) AND t.typtypmod > 4 THEN 4 * (t.typtypmod - 4)
        WHEN b.oid IN (25, 1042, 1043) THEN 1073741824 END AS character_octet_length,
    CASE b.oid WHEN 21 THEN 16 WHEN 23 THEN 32 WHEN 20 THEN 64 WHEN 700 THEN 24 WHEN 701 THEN 53 END
        AS numeric_precision,
    CASE WHEN b.oid IN (21, 23, 20, 700, 701) THEN 2 WHEN b.oid = 1700 THEN 10 END AS numeric_precision_radix,
    CASE WHEN b.oid IN (21, 23, 20) THEN 0 END AS numeric_scale,
    CASE WHEN b.oid = 1082 THEN 0 WHEN b.oid IN (1083, 1114, 1184, 1266, 1186) THEN 6 END
        AS datetime_precision,
    CASE WHEN co.oid <> 100 THEN current_database() END AS collation_catalog,
    CASE WHEN co.oid <> 100 THEN 'pg_catalog' END AS collation_schema,
    CASE WHEN co.oid <> 100 THEN co.collname END AS collation_name,
    CASE WHEN t.typtype = 'd' THEN current_database() END AS domain_catalog,
    CASE WHEN t.typtype = 'd' THEN tn.nspname END AS domain_schema,
    CASE WHEN t.typtype = 'd' THEN t.typname END AS domain_name,
    current_database() AS udt_catalog, bn.nspname AS udt_schema, b.typname AS udt_name,
    a.attnum AS dtd_identifier, 'NO' AS is_self_referencing, 'NO' AS is_identity, 'NO' AS identity_cycle,
    'NEVER' AS is_generated, 'NO' AS is_updatable
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_type t ON t.oid = a.atttypid JOIN pg_namespace tn ON tn.oid = t.typnamespace
    JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
    JOIN pg_namespace bn ON bn.oid = b.typnamespace
    LEFT JOIN pg_collation co ON co.oid = a.attcollation
WHERE a.attnum > 0 AND NOT a.attisdropped AND $shown AND c.relname NOT LIKE '\_pg%';

-- information_schema.table_constraints
SELECT current_database() AS constraint_catalog, k.nspname AS constraint_schema, k.conname AS constraint_name,
    current_database() AS table_catalog, k.nspname AS table_schema, k.relname AS table_name,
    CASE k.contype WHEN 'p' THEN 'PRIMARY KEY' WHEN 'u' THEN 'UNIQUE' ELSE 'FOREIGN KEY' END AS constraint_type,
    CASE WHEN k.condeferrable THEN 'YES' ELSE 'NO' END AS is_deferrable,
    CASE WHEN k.condeferred THEN 'YES' ELSE 'NO' END AS initially_deferred, 'YES' AS enforced,
    CASE WHEN k.contype = 'u' THEN 'YES' END AS nulls_distinct
FROM ($keys) k
UNION ALL
SELECT current_database(), k.nspname, k.conname, current_database(), k.nspname, k.relname, 'CHECK', 'NO', 'NO',
    'YES', NULL FROM ($not_nulls) k;

-- information_schema.check_constraints
SELECT current_database() AS constraint_catalog, k.nspname AS constraint_schema, k.conname AS constraint_name,
    k.attname || ' IS NOT NULL' AS check_clause FROM ($not_nulls) k;

-- information_schema.key_column_usage
SELECT current_database() AS constraint_catalog, k.nspname AS constraint_schema, k.conname AS constraint_name,
    current_database() AS table_catalog, k.nspname AS table_schema, k.relname AS table_name,
    a.attname AS column_name, p.n AS ordinal_position,
    CASE WHEN k.contype = 'f' THEN array_position(f.conkey, k.confkey[p.n]) END AS position_in_unique_constraint
FROM ($keys) k JOIN generate_series(1, 32) p(n) ON p.n <= cardinality(k.conkey)
    JOIN pg_attribute a ON a.attrelid = k.relation AND a.attnum = k.conkey[p.n]
    LEFT JOIN pg_constraint f ON f.conindid = k.conindid AND f.contype IN ('p', 'u');

-- information_schema.referential_constraints
SELECT current_database() AS constraint_catalog, k.nspname AS constraint_schema, k.conname AS constraint_name,
    current_database() AS unique_constraint_catalog, pn.nspname AS unique_constraint_schema,
    p.conname AS unique_constraint_name, 'NONE' AS match_option, 'NO ACTION' AS update_rule,
    'NO ACTION' AS delete_rule
FROM ($keys) k JOIN pg_constraint p ON p.conindid = k.conindid AND p.contype IN ('p', 'u')
    JOIN pg_namespace pn ON pn.oid = p.connamespace WHERE k.contype = 'f';

-- information_schema.constraint_column_usage
SELECT current_database() AS table_catalog, rn.nspname AS table_schema, r.relname AS table_name,
    a.attname AS column_name, current_database() AS constraint_catalog, k.nspname AS constraint_schema,
    k.conname AS constraint_name
FROM ($keys) k JOIN pg_class r ON r.oid = CASE WHEN k.contype = 'f' THEN k.confrelid ELSE k.conrelid END
    JOIN pg_namespace rn ON rn.oid = r.relnamespace JOIN pg_attribute a ON a.attrelid = r.oid
        AND a.attnum = ANY (CASE WHEN k.contype = 'f' THEN k.confkey ELSE k.conkey END);

-- information_schema.constraint_table_usage
SELECT current_database() AS table_catalog, rn.nspname AS table_schema, r.relname AS table_name,
    current_database() AS constraint_catalog, k.nspname AS constraint_schema, k.conname AS constraint_name
FROM ($keys) k JOIN pg_class r ON r.oid = CASE WHEN k.contype = 'f' THEN k.confrelid ELSE k.conrelid END
    JOIN pg_namespace rn ON rn.oid = r.relnamespace;

-- information_schema.table_privileges
SELECT pg_get_userbyid(c.relowner) AS grantor, current_user AS grantee, current_database() AS table_catalog,
    n.nspname AS table_schema, c.relname AS table_name, 'SELECT' AS privilege_type, 'NO' AS is_grantable,
    'YES' AS with_hierarchy
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE $shown AND $own;

-- information_schema.column_privileges
SELECT pg_get_userbyid(c.relowner) AS grantor, current_user AS grantee, current_database() AS table_catalog,
    n.nspname AS table_schema, c.relname AS table_name, a.attname AS column_name,
    'SELECT' AS privilege_type, 'NO' AS is_grantable
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
WHERE $shown AND $own AND a.attnum > 0;

-- information_schema.element_types
SELECT current_database() AS object_catalog, n.nspname AS object_schema, c.relname AS object_name,
    'TABLE' AS object_type, a.attnum AS collection_type_identifier, format_type(e.oid, NULL) AS data_type,
    current_database() AS udt_catalog, 'pg_catalog' AS udt_schema, e.typname AS udt_name,
    'a' || a.attnum::text AS dtd_identifier
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_type t ON t.oid = a.atttypid JOIN pg_type e ON e.oid = t.typelem
WHERE a.attnum > 0 AND t.typcategory = 'A' AND $shown;

-- information_schema.routines
SELECT current_database() AS specific_catalog, n.nspname AS specific_schema,
    p.proname || '_' || p.oid::text AS specific_name, current_database() AS routine_catalog,
    n.nspname AS routine_schema, p.proname AS routine_name,
    CASE p.prokind WHEN 'f' THEN 'FUNCTION' WHEN 'p' THEN 'PROCEDURE' END AS routine_type,
    format_type(t.oid, NULL) AS data_type, current_database() AS type_udt_catalog,
    'pg_catalog' AS type_udt_schema, t.typname AS type_udt_name, 'EXTERNAL' AS routine_body,
    'INTERNAL' AS external_language
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_type t ON t.oid = p.prorettype;

-- information_schema.character_sets
SELECT 'UTF8' AS character_set_name, 'UCS' AS character_repertoire, 'UTF8' AS form_of_use,
    current_database() AS default_collate_catalog, 'pg_catalog' AS default_collate_schema,
    'C' AS default_collate_name;

-- information_schema.collations
SELECT current_database() AS collation_catalog, 'pg_catalog' AS collation_schema, c.collname AS collation_name,
    'NO PAD' AS pad_attribute FROM pg_collation c;

-- information_schema.domains
SELECT current_database() AS domain_catalog, n.nspname AS domain_schema, t.typname AS domain_name,
    format_type(b.oid, NULL) AS data_type, current_database() AS udt_catalog, 'pg_catalog' AS udt_schema,
    b.typname AS udt_name, 1 AS dtd_identifier
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace JOIN pg_type b ON b.oid = t.typbasetype
WHERE t.typtype = 'd';

-- information_schema.role_table_grants
SELECT * FROM information_schema.table_privileges;

-- information_schema.role_column_grants
SELECT * FROM information_schema.column_privileges;
