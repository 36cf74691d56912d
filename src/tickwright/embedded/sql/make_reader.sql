-- Make a plain role for sources. Promise: it may log in and nothing else; fails with 42710 when it exists.
CREATE ROLE {name} LOGIN
