-- name: has_reports
-- Whether somebody has ever asked for a report that is still known. Index: reports_pkey.
SELECT EXISTS (SELECT FROM tickwright.reports);

-- name: under_way
-- Reports that are not over by their status, counted up to 10,000. Index: reports_steps.
SELECT count(*) FILTER (WHERE status = 'pending') AS pending, count(*) FILTER (WHERE status = 'querying') AS querying,
       count(*) FILTER (WHERE status = 'merging') AS merging
  FROM (SELECT status FROM tickwright.reports WHERE step_at IS NOT NULL LIMIT 10000) AS open;

-- name: over_lately
-- How the last 10,000 of the last hour ended. Index: reports_finished.
SELECT count(*) FILTER (WHERE status = 'finished') AS finished, count(*) FILTER (WHERE status = 'failed') AS failed
  FROM (SELECT status FROM tickwright.reports WHERE finished_at > clock_timestamp() - interval '1 hour'
         ORDER BY finished_at DESC LIMIT 10000) AS lately;

-- name: last_file
-- The newest file among the last 1,000 that ended: whose, how large, where, and how long it took from the request. Index: reports_finished.
SELECT id, type, rows, bytes, file_address AS address, extract(epoch FROM finished_at - created_at)::float8 AS took_s
  FROM (SELECT * FROM tickwright.reports WHERE finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT 1000) AS lately
 WHERE status = 'finished' ORDER BY finished_at DESC LIMIT 1;
