-- Set the password in a role's URL. Promise: one role.
ALTER ROLE {name} PASSWORD {password}
