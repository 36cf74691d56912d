-- release marks that were not published. KEYS: marks. ARGV: token. Deletes what is still claimed under the token; returns how many.
local count = 0
for i = 1, #KEYS do
  if redis.call('GET', KEYS[i]) == 'p:' .. ARGV[1] then
    count = count + redis.call('DEL', KEYS[i])
  end
end
return count
