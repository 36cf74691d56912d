-- name: overview
-- Unfinished reports by status, counted up to $1; the results of the last hour, likewise; the newest file among the last thousand that
-- ended: its report, size, address, and time since the request. Index: reports_steps, reports_finished.
SELECT open.*, over.*, last.last
  FROM (SELECT count(*) FILTER (WHERE status = 'pending') AS pending, count(*) FILTER (WHERE status = 'querying') AS querying,
               count(*) FILTER (WHERE status = 'merging') AS merging
          FROM (SELECT status FROM tickwright.reports WHERE step_at IS NOT NULL LIMIT $1) AS open) AS open
 CROSS JOIN (SELECT count(*) FILTER (WHERE status = 'finished') AS finished, count(*) FILTER (WHERE status = 'failed') AS failed
               FROM (SELECT status FROM tickwright.reports WHERE finished_at > clock_timestamp() - interval '1 hour'
                      ORDER BY finished_at DESC LIMIT $1) AS lately) AS over
  LEFT JOIN (SELECT json_build_object('id', id, 'type', type, 'rows', rows, 'bytes', bytes, 'address', file_address,
                                      'took_s', date_part('epoch', finished_at - created_at))::text AS last
               FROM (SELECT * FROM tickwright.reports WHERE finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT 1000) AS lately
              WHERE status = 'finished' ORDER BY finished_at DESC LIMIT 1) AS last ON true;

-- name: is_used
-- Whether there is a report type. Index: report_types_pkey.
SELECT EXISTS (SELECT FROM tickwright.report_types);

-- name: unserved
-- Functions and sources that report types need and no live process of the role has. Services run outside, so they are
-- not checked. Small: a row per type, and per process.
SELECT expected.served_by, string_agg(DISTINCT expected.type, ', ' ORDER BY expected.type) AS types
  FROM (SELECT t.name::text AS type,
               CASE one ->> 'kind' WHEN 'function' THEN 'function:' || (one ->> 'name') WHEN 'sql' THEN 'source:' || (one ->> 'source') END
                 AS served_by
          FROM tickwright.report_types t CROSS JOIN LATERAL jsonb_array_elements(t.definition -> 'listeners') AS one) AS expected
 WHERE expected.served_by IS NOT NULL
   AND NOT EXISTS (SELECT FROM tickwright.workers w
                    WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND 'report-listener' = ANY (w.roles)
                      AND w.facts -> 'serves' ? expected.served_by)
 GROUP BY expected.served_by ORDER BY expected.served_by LIMIT 20;
