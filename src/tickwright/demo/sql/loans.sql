-- name: make_clients
-- Create the example's third database: fifty thousand clients, and a table for their applications; once. One in a
-- hundred has no age.
CREATE TABLE IF NOT EXISTS clients (id integer PRIMARY KEY, name text NOT NULL, age bigint, income double precision, country text NOT NULL);
INSERT INTO clients
SELECT n, 'client ' || n, CASE WHEN n % 100 > 0 THEN 18 + n * 7 % 60 END, n::bigint * 7919 % 9000, ('{UK,DE,ES,FR,IT,NL,PL,SE}'::text[])[1 + n % 8]
  FROM generate_series(1, 50000) AS n WHERE NOT EXISTS (SELECT FROM clients);
CREATE TABLE IF NOT EXISTS applications (execution_id bigint, client_id integer, made_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (execution_id, client_id));
ANALYZE clients;

-- name: apply
-- Write one application. A retried job changes nothing.
INSERT INTO applications (execution_id, client_id) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: applications
-- Number of applications of an execution.
SELECT count(*) FROM applications WHERE execution_id = $1;
