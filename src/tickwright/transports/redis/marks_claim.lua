-- claim marks. KEYS: mark and runs hash of each window, alternating. ARGV: token, lease in ms, task type of each window.
-- Returns for each window: 0 mine, 1 another token's, 2 sealed; then the last success, or ''.
local mine, lease = 'p:' .. ARGV[1], ARGV[2]
local answer = {}
for i = 1, #KEYS / 2 do
  local key = KEYS[2 * i - 1]
  local value = redis.call('GET', key)
  local found = 1
  if not value or value == mine then
    redis.call('SET', key, mine, 'PX', lease)
    found = 0
  elseif string.sub(value, 1, 2) == 'd:' then
    found = 2
  end
  answer[2 * i - 1] = found
  answer[2 * i] = redis.call('HGET', KEYS[2 * i], 's:' .. ARGV[2 + i]) or ''
end
return answer
