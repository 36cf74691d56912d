-- name: clients
-- $1 clients in an order that says nothing: nine in ten are old enough, three in four earn enough, half live in the UK.
CREATE TABLE public.clients (
  id      bigint           PRIMARY KEY,
  age     smallint         NOT NULL,
  income  double precision NOT NULL,
  country text             NOT NULL,
  name    text             NOT NULL
);

-- name: put_clients
-- The rows; the same for the same number.
INSERT INTO public.clients
SELECT n, 18 + (n::bigint * 7919) % 63, 1000 + (n::bigint * 104729) % 8000, (ARRAY['UK', 'DE', 'UK', 'FR'])[1 + (n::bigint * 1299709) % 1009 % 4],
       'client ' || n
  FROM generate_series(1, $1::integer) AS n;

-- name: expected
-- The clients that have to be selected, in plain SQL.
SELECT id::text FROM public.clients WHERE age > 25 AND income > 3000 AND country = 'UK';

-- name: all_clients
-- The same of an expression that selects all.
SELECT id::text FROM public.clients;

-- name: settle
-- No execution, action or message of an earlier run is left.
TRUNCATE tickwright.executions, tickwright.execution_chunks, tickwright.execution_actions, tickwright.outbox;

-- name: newest_consumer
-- The consumer that registered last.
SELECT coalesce(max(id), 0) FROM tickwright.workers WHERE 'campaign-consumer' = ANY (roles);

-- name: progress
-- Where an execution is. Index: executions_pkey.
SELECT status, planned_at IS NOT NULL, chunks_done, chunks FROM tickwright.executions WHERE id = $1;

-- name: run
-- What an execution took from NEW to its end, in seconds, cutting it included; and what it counted. Index: executions_pkey.
SELECT extract(epoch FROM finished_at - created_at)::float8, extract(epoch FROM planned_at - created_at)::float8, status, seen, selected, actions, chunks,
       error_message
  FROM tickwright.executions WHERE id = $1;

-- name: redone
-- Claims of chunks beyond the first one of each. Index: execution_chunks_pkey.
SELECT coalesce(sum(fence - 1), 0)::bigint FROM tickwright.execution_chunks WHERE execution_id = $1;

-- name: recorded
-- The clients that have an action. Index: execution_actions_pkey.
SELECT client_id FROM tickwright.execution_actions WHERE execution_id = $1;

-- name: left
-- Where messages of actions go instead of a broker.
CREATE TABLE public.bench_left (client_id text COLLATE "C" NOT NULL, execution_id bigint NOT NULL);

-- name: take_messages
-- Take what waits in the outbox, as a relay does, and keep the client that it is about. Index: outbox_pkey.
WITH gone AS (
  DELETE FROM tickwright.outbox WHERE id IN (SELECT id FROM tickwright.outbox ORDER BY id LIMIT 50000 FOR UPDATE SKIP LOCKED)
  RETURNING payload ->> 'client_id' AS client_id, (payload ->> 'execution_id')::bigint AS execution_id
), kept AS (INSERT INTO public.bench_left SELECT * FROM gone RETURNING client_id)
SELECT count(*) FROM kept;

-- name: unreleased
-- Chunks whose actions have not left. Index: execution_chunks_pkey.
SELECT count(*) FROM tickwright.execution_chunks WHERE execution_id = $1 AND state <> 'released';

-- name: messages
-- How many messages of an execution left for each client.
SELECT client_id, count(*) FROM public.bench_left WHERE execution_id = $1 GROUP BY client_id;

-- name: put_campaigns
-- $1 campaigns whose first of $2 hourly occurrences was so many hours ago, less half of one; none has an execution.
WITH made AS (
  INSERT INTO tickwright.batches (name, kind, type, status, date_time_execution, restartable, restartable_unit, restartable_unit_type, overlap, misfire,
    misfire_max, next_slot_at)
  SELECT 'race.' || n, 'campaign', 'AUTOMATIC', 'SCHEDULED', at, true, 1, 'HOURS', 'queue', 'all', $2::integer, at
    FROM generate_series(1, $1::integer) AS n, (SELECT clock_timestamp() - make_interval(mins => $2::integer * 60 - 30) AS at) AS first
  RETURNING id)
SELECT count(*) FROM made;

-- name: forget_slots
-- All of them are due from their first occurrence on, as if a copy of the database had lost what was done.
UPDATE tickwright.batches SET next_slot_at = date_time_execution WHERE name LIKE 'race.%';

-- name: hold_start
-- Producers wait at this lock.
SELECT pg_advisory_lock(7);

-- name: let_start
-- All of them begin at once.
SELECT pg_advisory_unlock(7);

-- name: unlock_all
-- Release every lock of the session, so that no producer waits any longer.
SELECT pg_advisory_unlock_all();

-- name: wait_start
-- Waits until all producers are there.
SELECT pg_advisory_lock_shared(7);

-- name: waiting
-- How many sessions wait at that lock.
SELECT count(*) FROM pg_locks
 WHERE locktype = 'advisory' AND objid = 7 AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- name: slots
-- Executions of the race, occurrences that have one, and executions beyond the first one of each.
SELECT coalesce(sum(n), 0)::bigint, count(*), coalesce(sum(n - 1), 0)::bigint
  FROM (SELECT e.batch_id, e.slot_at, count(*) AS n FROM tickwright.executions e JOIN tickwright.batches b ON b.id = e.batch_id
         WHERE b.name LIKE 'race.%' GROUP BY e.batch_id, e.slot_at) AS found;
