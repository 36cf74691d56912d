-- Whether a database of this name exists. Promise: one row, one boolean. Index: pg_database_datname_index.
SELECT EXISTS (SELECT FROM pg_catalog.pg_database WHERE datname = %(name)s)
