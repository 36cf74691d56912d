-- name: overview
-- The backlog of executions: waiting and for how long, working, and actions of finished ones that have not left; each over at most $1 rows.
-- Then the last five that are working, and the newest one in any state. Index: executions_to_begin, executions_at_work,
-- executions_to_release, executions_pkey, batches_pkey.
SELECT waiting.executions AS waiting, coalesce(waiting.oldest_s, 0) AS oldest_s, working.executions AS working,
       coalesce(releasing.actions, 0)::bigint AS unreleased, latest.latest
  FROM (SELECT count(*) AS executions, date_part('epoch', clock_timestamp() - min(due_at)) AS oldest_s
          FROM (SELECT due_at FROM tickwright.executions
                 WHERE owner IS NULL AND (status = 'NEW' OR (status = 'IN_PROGRESS' AND planned_at IS NULL)) AND due_at <= clock_timestamp()
                 ORDER BY due_at LIMIT $1) AS w) AS waiting
 CROSS JOIN (SELECT count(*) AS executions
               FROM (SELECT FROM tickwright.executions WHERE status = 'IN_PROGRESS' LIMIT $1) AS i) AS working
 CROSS JOIN (SELECT sum(actions - released) AS actions
               FROM (SELECT actions, released FROM tickwright.executions
                      WHERE status IN ('IN_PROGRESS', 'FINISHED') AND chunks_released < chunks LIMIT $1) AS r) AS releasing
 CROSS JOIN (
   SELECT coalesce(json_agg(one ORDER BY one.id DESC), '[]')::text AS latest
     FROM (SELECT e.id, b.name, e.status, e.paused_at IS NOT NULL AS paused, e.chunks, e.chunks_done, e.members, e.seen, e.selected,
                  e.actions, e.released, date_part('epoch', coalesce(e.finished_at, clock_timestamp()) - e.started_at) AS took_s,
                  left(e.error_message, 500) AS error_message
             FROM ((SELECT id FROM tickwright.executions WHERE status = 'IN_PROGRESS' ORDER BY id DESC LIMIT 5)
                   UNION
                   (SELECT id FROM tickwright.executions ORDER BY id DESC LIMIT 1)) AS shown
             JOIN tickwright.executions e USING (id) JOIN tickwright.batches b ON b.id = e.batch_id) AS one) AS latest;

-- name: is_used
-- Whether there is a campaign or a program's batch. Index: batches_pkey.
SELECT EXISTS (SELECT FROM tickwright.batches);

-- name: unserved
-- What scheduled batches and batches with an open execution need and no live consumer has. Index: executions_open.
-- Small: a row per batch, and per process.
SELECT b.served_by, string_agg(b.name, ', ' ORDER BY b.name) AS batches
  FROM tickwright.batches b
 WHERE (b.status = 'SCHEDULED'
        OR EXISTS (SELECT FROM tickwright.executions e WHERE e.batch_id = b.id AND e.status IN ('NEW', 'IN_PROGRESS')))
   AND NOT EXISTS (SELECT FROM tickwright.workers w
                    WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND 'campaign-consumer' = ANY (w.roles)
                      AND w.facts -> 'batches' ? b.served_by)
 GROUP BY b.served_by ORDER BY b.served_by LIMIT 20;
