-- name: now
-- What changes every second: the living sessions ($2 at most) and the counters of those seen after $1; how many were lost lately; which of the
-- API keys $3 and of the browsers' sessions $4 are valid. Index: workers_pkey (small: a row per session of a day), api_keys_pkey,
-- sessions_pkey.
SELECT clock_timestamp() AS at,
       (SELECT coalesce(json_agg(json_build_object(
                 'id', w.id, 'roles', w.roles, 'seen_s', date_part('epoch', w.seen_at),
                 'draining', w.drain_requested_at IS NOT NULL,
                 'counters', CASE WHEN w.seen_at > $1::timestamptz THEN w.facts -> 'counters' END)), '[]')
          FROM (SELECT * FROM tickwright.workers WHERE lost_at IS NULL AND lease_until > clock_timestamp()
                 ORDER BY id DESC LIMIT $2::integer) AS w)::text AS sessions,
       (SELECT count(*) FROM tickwright.workers WHERE lost_at > clock_timestamp() - interval '1 hour') AS lost_lately,
       {valid_callers};

-- name: status
-- Dead letters of the outbox and its waiting messages, each counted up to $1; the leases. Indexes: outbox_dead_pkey, outbox_pkey; leases are
-- a row per job name.
SELECT (SELECT count(*) FROM (SELECT 1 FROM tickwright.outbox_dead LIMIT $1) AS o) AS dead,
       (SELECT count(*) FROM (SELECT 1 FROM tickwright.outbox LIMIT $1) AS w) AS outbox_waiting,
       leases.*
  FROM (SELECT count(*) FILTER (WHERE owner IS NOT NULL AND lease_until >= clock_timestamp()) AS held,
               count(*) FILTER (WHERE owner IS NULL) AS free, coalesce(sum(version), 0)::bigint AS versions,
               coalesce(array_agg(job_name ORDER BY job_name) FILTER (WHERE owner IS NOT NULL AND lease_until < clock_timestamp()), '{}')
                 AS overdue
          FROM (SELECT * FROM tickwright.job_config ORDER BY job_name LIMIT 10000) AS one) AS leases;

-- name: alerts
-- Firing alerts counted by rule and severity, five of them (the most severe first, of equal ones the newest), and the highest id. Index:
-- alerts_firing, alerts_pkey.
SELECT (SELECT coalesce(json_agg(one), '[]')
          FROM (SELECT rule, severity, count(*) AS firing FROM tickwright.alerts WHERE state = 'firing' GROUP BY rule, severity) AS one)::text
         AS firing,
       (SELECT coalesce(json_agg(json_build_object('id', a.id, 'rule', a.rule, 'subject', a.subject, 'severity', a.severity,
                                                   'summary', a.summary, 'fired_at', a.fired_at)), '[]')
          FROM (SELECT * FROM tickwright.alerts WHERE state = 'firing'
                 ORDER BY array_position(ARRAY['critical', 'warning', 'info'], severity::text), id DESC LIMIT 5) AS a)::text AS newest,
       (SELECT max(id) FROM tickwright.alerts) AS last_id;
