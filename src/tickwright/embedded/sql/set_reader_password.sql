-- Give a role the password that its URL has. Promise: one role.
ALTER ROLE {name} PASSWORD {password}
