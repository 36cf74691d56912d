-- Create an empty database. Promise: UTF-8 whatever the template was changed to; fails with 42P04 if it exists.
CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'
