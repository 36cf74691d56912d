-- Wait for other processes that create the same roles. Promise: held until the connection closes. Only this lock uses
-- the number 20058.
SELECT pg_catalog.pg_advisory_lock(20058, 1)
