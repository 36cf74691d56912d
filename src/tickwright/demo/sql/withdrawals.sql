-- name: make_users
-- Create the example's first database with five hundred users; once.
CREATE TABLE IF NOT EXISTS users (id integer PRIMARY KEY, name text NOT NULL, country text NOT NULL);
INSERT INTO users SELECT n, 'user ' || n, ('{DE,FR,NL,PL}'::text[])[1 + n % 4] FROM generate_series(1, 500) AS n ON CONFLICT DO NOTHING;

-- name: make_withdrawals
-- Create the example's second database with twenty thousand withdrawals; once.
CREATE TABLE IF NOT EXISTS withdrawals (id integer PRIMARY KEY, user_id integer NOT NULL, amount numeric(12, 2) NOT NULL, asked_at timestamptz NOT NULL);
INSERT INTO withdrawals
SELECT n, 1 + n % 500, (n * 7919 % 100000)::numeric / 100, timestamptz '2026-01-01 00:00Z' + n * interval '7 minutes'
  FROM generate_series(1, 20000) AS n ON CONFLICT DO NOTHING;

-- name: users
-- The first part: the users of a country. Reads the whole small table.
SELECT id AS user_id, name FROM users WHERE country = :country;

-- name: withdrawals
-- The second part: all withdrawals, because this database has no countries. Reads the whole small table.
SELECT user_id, id AS withdrawal, amount, asked_at FROM withdrawals;

-- name: joined
-- The file: DuckDB's SQL over both parts.
SELECT name, withdrawal, amount, asked_at FROM users JOIN withdrawals USING (user_id) ORDER BY name, withdrawal;
