-- forget what the ledger has. KEYS: the carry hash. ARGV: fields and values, alternating; a value that has changed stays.
local count = 0
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    count = count + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return count
