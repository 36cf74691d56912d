-- renew runs that are under way. KEYS: the runs hash of each run's entity. ARGV: owner, lease in ms, seconds to keep a hash;
-- then of each run: task type, fence. Returns 1 for each that is still ours, else 0.
local time = redis.call('TIME')
local til = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2])
local answer = {}
for i = 1, #KEYS do
  local field = 'c:' .. ARGV[2 + 2 * i]
  local mine = ARGV[1] .. ':' .. ARGV[3 + 2 * i] .. ':'
  local claim = redis.call('HGET', KEYS[i], field)
  answer[i] = 0
  if claim and string.sub(claim, 1, #mine) == mine then
    redis.call('HSET', KEYS[i], field, mine .. til)
    redis.call('EXPIRE', KEYS[i], ARGV[3])
    answer[i] = 1
  end
end
return answer
