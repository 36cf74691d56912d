-- name: lists
-- A thousand different lists of modules of enabled entities, one probe each: from the first list on, and from each module's name on. Every role
-- that may insert entities can invent lists, and those must not hide a module. To be placed after WITH RECURSIVE.
-- Index: entities_polled, of which the rows are not read; modules_pkey.
lists AS (
  SELECT top.list
    FROM (SELECT '' AS name UNION ALL SELECT m.name FROM tickwright.modules m UNION ALL SELECT lower(m.name) FROM tickwright.modules m) AS start
   CROSS JOIN LATERAL (
     SELECT e.polling_enabled_modules AS list FROM tickwright.entities e
      WHERE e.is_polling_enabled AND e.polling_enabled_modules >= start.name ORDER BY e.polling_enabled_modules LIMIT 1) AS top
  UNION
  SELECT n.list
    FROM lists l CROSS JOIN LATERAL (
      SELECT e.polling_enabled_modules AS list FROM tickwright.entities e
       WHERE e.is_polling_enabled AND e.polling_enabled_modules > l.list ORDER BY e.polling_enabled_modules LIMIT 1) AS n
), searched AS MATERIALIZED (
  SELECT list FROM lists LIMIT 1000
);

-- name: listed
-- The view listed_modules at a bounded cost: of those lists, the first 200 names of each, and a million entities in all.
{lists}, numbered AS MATERIALIZED (
  SELECT list, (SELECT count(*) FROM (SELECT FROM tickwright.entities e
                                       WHERE e.is_polling_enabled AND e.polling_enabled_modules = searched.list
                                       LIMIT (SELECT 1000000 / greatest(count(*), 1) FROM searched)) AS some_of_them) AS entities
    FROM searched
), listed AS MATERIALIZED (
  SELECT l.list, p.name, l.entities
    FROM numbered l
   CROSS JOIN LATERAL (SELECT DISTINCT btrim(few.part, E' \t\r\n\f\v') AS name
                         FROM (SELECT part FROM string_to_table(upper(l.list), ',') AS part LIMIT 200) AS few) AS p
   WHERE p.name <> ''
);
