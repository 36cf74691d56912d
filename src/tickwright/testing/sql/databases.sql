-- name: templates
-- Databases that earlier fixtures have made as templates, the oldest first.
SELECT datname FROM pg_database WHERE datname LIKE 'tickwright\_template\_%' ORDER BY oid;

-- name: leftovers
-- Databases of tests.
SELECT datname FROM pg_database WHERE datname LIKE 'tickwright\_test\_%' ORDER BY oid;

-- name: lock
-- Let one process at a time make the template.
SELECT pg_advisory_lock(hashtext('tickwright_template'));

-- name: unlock
-- As above.
SELECT pg_advisory_unlock(hashtext('tickwright_template'));

-- name: own
-- Mark the database of this name as used, for as long as the connection lives; false where another process uses it.
SELECT pg_try_advisory_lock(hashtext(%s));

-- name: disown
-- As above.
SELECT pg_advisory_unlock(hashtext(%s));

-- name: exists
-- Whether there is a database of this name.
SELECT EXISTS (SELECT FROM pg_database WHERE datname = %s);

-- name: create
-- Make a database of a template that no session uses. The copy of files takes a third of the time of the default strategy.
CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY;

-- name: drop
-- Drop a database, with its sessions.
DROP DATABASE IF EXISTS {name} WITH (FORCE);

-- name: rename
-- Give a finished template its name, which no unfinished one has.
ALTER DATABASE {name} RENAME TO {wanted};

-- name: is_superuser
-- Whether the clock of a new database can be replaced.
SELECT rolsuper FROM pg_roles WHERE rolname = current_user;
