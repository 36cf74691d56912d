-- What a role for sources needs of one database. Promise: it reads the tables that are in public now, and writes none; twice is harmless.
GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}
