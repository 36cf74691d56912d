-- name: executions
-- The last five executions that are at work, and the newest one whatever has become of it. Index: executions_at_work, executions_pkey, batches_pkey.
SELECT e.id, b.name, e.status, e.paused_at IS NOT NULL AS paused, e.chunks, e.chunks_done, e.members, e.seen, e.selected, e.actions, e.released,
       extract(epoch FROM coalesce(e.finished_at, clock_timestamp()) - e.started_at)::float8 AS took_s, e.error_message
  FROM ((SELECT id FROM tickwright.executions WHERE status = 'IN_PROGRESS' ORDER BY id DESC LIMIT 5)
        UNION
        (SELECT id FROM tickwright.executions ORDER BY id DESC LIMIT 1)) AS shown
  JOIN tickwright.executions e USING (id) JOIN tickwright.batches b ON b.id = e.batch_id
 ORDER BY e.id DESC;
