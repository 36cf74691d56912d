-- name: type_counters
-- Each living session's counters of its task types. Small: a row per session, with at most 20 kB of counters.
SELECT id, date_part('epoch', seen_at) AS seen_s, (facts #> '{counters,types}')::text AS types, date_part('epoch', clock_timestamp()) AS now_s
  FROM tickwright.workers WHERE lost_at IS NULL AND lease_until > clock_timestamp() ORDER BY id DESC LIMIT 1000;
