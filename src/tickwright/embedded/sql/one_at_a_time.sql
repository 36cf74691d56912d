-- Wait for whoever makes the same roles. Promise: held until the connection closes. 20058 is a number of ours alone.
SELECT pg_catalog.pg_advisory_lock(20058, 1)
