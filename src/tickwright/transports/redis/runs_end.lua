-- end runs. KEYS: the carry hash, then the runs hash of each run's entity. ARGV: owner, seconds to keep a hash,
-- 1 to carry successes over; then of each run: task type, fence, 1 if it succeeded, window, when it began, the field of the
-- carry hash. Only the claim's holder writes; a repetition is harmless.
-- Returns 1 for each run that was ours, else 0.
local answer = {}

for i = 1, #KEYS - 1 do
  local key, at = KEYS[i + 1], 6 * i - 2
  local type, fence, window, began = ARGV[at], ARGV[at + 1], ARGV[at + 3], ARGV[at + 4]
  local known = redis.call('HMGET', key, 'c:' .. type, 'e:' .. type)
  local mine = ARGV[1] .. ':' .. fence .. ':'
  answer[i] = 0
  if known[1] and string.sub(known[1], 1, #mine) == mine then
    redis.call('HDEL', key, 'c:' .. type)
    redis.call('HSET', key, 'e:' .. type, mine)
    redis.call('EXPIRE', key, ARGV[2])
    answer[i] = 1
    if ARGV[at + 2] == '1' then
      redis.call('HSET', key, 'd:' .. type, window, 's:' .. type, began) -- forward only: begin refuses a window that is not newer
      if ARGV[3] == '1' then
        redis.call('HSET', KEYS[1], ARGV[at + 5], window .. '|' .. began)
      end
    end
  elseif known[2] == mine then
    answer[i] = 1
  end
end
return answer
