-- Grant a role for sources its rights in one database. Promise: it reads the present tables in public and writes none;
-- repeated calls are harmless.
GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}
