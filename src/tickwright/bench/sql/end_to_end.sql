-- name: make_records
-- The bench's own tables: the trackers of each time slot when it begins, and every row that was ever in the outbox. Reads
-- all trackers once.
CREATE TABLE bench_slots AS
SELECT s.slot_id, s.interval_minutes, s.next_due_at AS first_due_at, coalesce(t.trackers, 0) AS trackers
  FROM tickwright.poll_slots s
  LEFT JOIN (SELECT place / 60 AS slot_id, count(*) AS trackers FROM tickwright.trackers WHERE place IS NOT NULL GROUP BY 1) AS t USING (slot_id);
CREATE TABLE bench_due (
  id bigint PRIMARY KEY, release_at timestamptz NOT NULL, due_at timestamptz NOT NULL, slot_id integer NOT NULL, partner_no smallint NOT NULL,
  polls integer NOT NULL
);

-- name: note_first_turns
-- When each time slot is first due.
UPDATE bench_slots b SET first_due_at = s.next_due_at FROM tickwright.poll_slots s WHERE s.slot_id = b.slot_id;

-- name: note_outbox
-- A row waits for a minute before it is released: reading more often than that misses none.
INSERT INTO bench_due (id, release_at, due_at, slot_id, partner_no, polls)
SELECT id, release_at, due_at, slot_id, partner_no, cardinality(ids) FROM tickwright.scheduler_outbox o
 WHERE NOT EXISTS (SELECT FROM bench_due b WHERE b.id = o.id);

-- name: backlog
-- Polls that were released since $1 and have no effect yet: in the outbox, on the topic or in the queue, at a consumer.
SELECT (SELECT coalesce(sum(polls), 0) FROM bench_due WHERE release_at <= clock_timestamp())
       - (SELECT coalesce(sum(polled + superseded), 0) FROM tickwright.poll_slices WHERE due_at >= $1)::bigint;

-- name: due
-- Polls that were due from $1 to before $2: what was selected, and for a time slot that was not selected, its trackers; and
-- how many such slots there are, and the first of them.
WITH turn AS (
  SELECT b.slot_id, b.trackers, at.due_at
    FROM bench_slots b CROSS JOIN LATERAL generate_series(b.first_due_at, $2::timestamptz, make_interval(mins => b.interval_minutes)) AS at (due_at)
   WHERE at.due_at >= $1 AND at.due_at < $2
), selected AS (
  SELECT slot_id, due_at, sum(selected) AS polls FROM tickwright.poll_slices
   WHERE due_at >= $1 AND due_at < $2 AND NOT coalesced GROUP BY slot_id, due_at
)
SELECT coalesce(sum(coalesce(s.polls, t.trackers)), 0)::bigint, count(*) FILTER (WHERE s.polls IS NULL AND t.trackers > 0),
       min(t.due_at) FILTER (WHERE s.polls IS NULL AND t.trackers > 0)
  FROM turn t LEFT JOIN selected s USING (slot_id, due_at);

-- name: done
-- Polls that were due from $1 to before $2 and are done: how many, how many within $3 seconds, how many before their second,
-- and the median, the 99th percentile and the largest of their lateness in seconds.
WITH late AS (
  SELECT date_part('epoch', done_at - due_at) AS s, cardinality(ids) AS polls
    FROM tickwright.poll_done WHERE due_at >= $1 AND due_at < $2
), added AS (
  SELECT s, polls, sum(polls) OVER (ORDER BY s ROWS UNBOUNDED PRECEDING) AS upto, sum(polls) OVER () AS total FROM late
)
SELECT coalesce(sum(polls), 0)::bigint, coalesce(sum(polls) FILTER (WHERE s <= $3::float8), 0)::bigint,
       coalesce(sum(polls) FILTER (WHERE s < 0), 0)::bigint,
       coalesce(min(s) FILTER (WHERE upto >= 0.5 * total), 0), coalesce(min(s) FILTER (WHERE upto >= 0.99 * total), 0), coalesce(max(s), 0)
  FROM added;

-- name: done_between
-- Polls whose effect was written from $1 to before $2, whenever they were due.
SELECT coalesce(sum(cardinality(ids)), 0)::bigint FROM tickwright.poll_done WHERE done_at >= $1 AND done_at < $2;

-- name: oldest_undone
-- The due second of the oldest poll that was due from $1 to before $2 and had no effect at $2.
WITH done AS (
  SELECT slot_id, due_at, partner_no, sum(cardinality(ids)) AS polls
    FROM tickwright.poll_done WHERE due_at >= $1 AND done_at < $2 GROUP BY slot_id, due_at, partner_no
), due AS (
  SELECT slot_id, due_at, partner_no, sum(polls) AS polls FROM bench_due WHERE due_at >= $1 AND due_at < $2 GROUP BY slot_id, due_at, partner_no
)
SELECT min(due.due_at) FROM due LEFT JOIN done USING (slot_id, due_at, partner_no) WHERE coalesce(done.polls, 0) < due.polls;

-- name: unseen
-- Polls due from $1 to before $2 that were selected and that the bench has not recorded: none, if it read the outbox often
-- enough.
SELECT coalesce((SELECT sum(selected) FROM tickwright.poll_slices WHERE due_at >= $1 AND due_at < $2), 0)::bigint
       - coalesce((SELECT sum(polls) FROM bench_due WHERE due_at >= $1 AND due_at < $2), 0)::bigint;

-- name: ready
-- Whether so many processes of each role are there and one of the relays has its lease.
SELECT (SELECT count(*) FROM tickwright.workers WHERE lost_at IS NULL) >= $1::integer
       AND EXISTS (SELECT FROM tickwright.job_config WHERE job_name = 'poll-relay:0' AND running);

-- name: assigned
-- Partitions that consumers of the topic have taken over.
SELECT count(*) FROM tickwright.poll_partitions;

-- name: selecting
-- Whether a selector has its lease.
SELECT EXISTS (SELECT FROM tickwright.job_config WHERE job_name = 'selector' AND running);

-- name: soon
-- The first whole minute that is at least $1 seconds ahead.
SELECT to_timestamp(60 * ceil((date_part('epoch', clock_timestamp()) + $1::float8) / 60));

-- name: seconds_until
-- By the database's clock.
SELECT date_part('epoch', $1::timestamptz - clock_timestamp());
