-- get: one listener's data. KEYS: the report's hash. ARGV: epoch, listener, nonce.
-- Returns {0, data}; {1, ''} not there: no mark, another epoch's hash, or over (then it has no epoch); {2, ''} invalid or not ours: no
-- hash, or another record's.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind ~= 'none' and kind ~= 'hash' then
  return {2, ''}
end
local known = redis.call('HMGET', KEYS[1], 'epoch', 'done:' .. ARGV[2], ARGV[2], 'record')
if kind == 'hash' and known[4] ~= ARGV[3] then
  return {2, ''}
end
if known[1] == ARGV[1] and known[2] and known[3] then
  return {0, known[3]}
end
return {1, ''}
