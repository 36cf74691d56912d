-- Create a plain role for sources. Promise: it may only log in; fails with 42710 if it exists.
CREATE ROLE {name} LOGIN
