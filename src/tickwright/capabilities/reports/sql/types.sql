-- name: list_types
-- A page of report types after the name $1, without their SQL. Index: report_types_pkey.
SELECT name, ARRAY(SELECT one ->> 'name' FROM jsonb_array_elements(definition -> 'listeners') AS one) AS listeners,
       coalesce((SELECT max(coalesce((one -> 'stage')::integer, 1)) FROM jsonb_array_elements(definition -> 'listeners') AS one), 1)
         AS stages,
       coalesce(definition ->> 'format', 'csv') AS format, set_by, created_at, updated_at
  FROM tickwright.report_types WHERE name > $1 ORDER BY name LIMIT $2;

-- name: get_type
-- One report type. Index: report_types_pkey.
SELECT name, definition, set_by, created_at, updated_at FROM tickwright.report_types WHERE name = $1;

-- name: near_types
-- Names of report types, for the error of an unknown one. Index: report_types_pkey.
SELECT name FROM tickwright.report_types ORDER BY name LIMIT 1000;

-- name: lock_type
-- Serialize changes of one report type. Index: report_types_pkey.
SELECT definition, set_by FROM tickwright.report_types WHERE name = $1 FOR UPDATE;

-- name: put_type
-- Create or replace a report type, for $3; a program ($4) replaces only what a program has set. An equal definition changes nothing.
-- Index: report_types_pkey.
INSERT INTO tickwright.report_types AS t (name, definition, set_by) VALUES ($1, $2::jsonb, $3)
ON CONFLICT (name) DO UPDATE SET definition = excluded.definition, set_by = excluded.set_by, updated_at = clock_timestamp()
 WHERE (NOT $4::boolean OR t.set_by = 'app')
   AND (t.definition, t.set_by) IS DISTINCT FROM (excluded.definition, excluded.set_by)
RETURNING xmax = 0 AS created;

-- name: delete_type
-- Delete a report type; records keep their plan. Index: report_types_pkey.
DELETE FROM tickwright.report_types WHERE name = $1;
