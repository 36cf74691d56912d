-- close: the report is over. KEYS: its hash. ARGV: status, life in ms, nonce. Its parts are deleted, and a late put finds the status.
-- Returns 1, or 0 where the key holds no hash, or another record's: it is foreign, and stays.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind ~= 'none' and kind ~= 'hash' then
  return 0
end
if kind == 'hash' and redis.call('HGET', KEYS[1], 'record') ~= ARGV[3] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'record', ARGV[3], 'status', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
