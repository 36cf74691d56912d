-- seal marks of what is published. KEYS: marks. ARGV: token, time to keep in ms. What another token has claimed or sealed stays its own.
-- Returns how many are another token's.
local published = 'd:' .. ARGV[1]
local others = 0
for i = 1, #KEYS do
  local value = redis.call('GET', KEYS[i])
  if not value or string.sub(value, 3) == ARGV[1] then
    redis.call('SET', KEYS[i], published, 'PX', ARGV[2])
  else
    others = others + 1
  end
end
return others
