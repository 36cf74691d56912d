-- name: people
-- One side of the join.
CREATE TABLE public.people AS
SELECT n AS id, 'user ' || n AS name, (ARRAY['GB', 'DE', 'FR', 'TW'])[n %% 4 + 1] AS country FROM generate_series(1, %s) AS n;

-- name: withdrawals
-- The other one.
CREATE TABLE public.withdrawals AS
SELECT n AS id, (n::bigint * 7919) %% %s + 1 AS user_id, (n %% 100000)::numeric(12, 2) / 100 AS amount,
       timestamptz '2026-01-01' + n * interval '1 second' AS at
  FROM generate_series(1, %s) AS n;

-- name: listening
-- Whether the listener has registered.
SELECT count(*) FROM tickwright.workers WHERE 'report-listener' = ANY (roles);
