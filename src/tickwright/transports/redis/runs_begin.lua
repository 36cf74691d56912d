-- begin runs. KEYS: the runs hash of each run's entity. ARGV: owner, lease in ms, seconds to keep a hash, how far ahead
-- (s) an instant may be to be believed; then of each run: task type, window, at_once. By the clock of this server.
-- Fields of a hash: c:<type> a claim owner:fence:until_ms, d:<type> the newest window that ran, s:<type> when that run began,
-- e:<type> the owner:fence: that ended last, n the last fence. A fence starts at the clock, so that none comes twice after a flush.
-- A value that no release of ours can have written, such as a text or a claim without an end, counts as absent.
-- Returns the clock in seconds; then of each run: 0 begun, 1 busy, 2 done; the fence; the last success, or ''.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local now_us = time[1] * 1000000 + time[2]
local horizon = time[1] + ARGV[4]

local function number(text, most)
  local found = tonumber(text or '')
  return found and found >= 0 and found <= most and found or nil
end

local function is_live(claim)
  local til = number(string.match(claim, ':(%d+)$'), horizon * 1000 + ARGV[2])
  return til and til > now_ms
end

local function live(key)
  local count, fields = 0, redis.call('HGETALL', key)
  for f = 1, #fields, 2 do
    if string.sub(fields[f], 1, 2) == 'c:' and is_live(fields[f + 1]) then
      count = count + 1
    end
  end
  return count
end

local answer = {string.format('%d.%06d', time[1], time[2])}
for i = 1, #KEYS do
  local key, type = KEYS[i], ARGV[2 + 3 * i]
  local window, at_once = tonumber(ARGV[3 + 3 * i]), tonumber(ARGV[4 + 3 * i])
  local known = redis.call('HMGET', key, 'c:' .. type, 'd:' .. type, 's:' .. type, 'n')
  local claim, done, success = known[1], number(known[2], horizon), number(known[3], horizon) and known[3]
  local found, fence = 0, '0'
  if done and window <= done then
    found = 2
  elseif (claim and is_live(claim)) or live(key) >= at_once then
    found = 1
  else
    fence = string.format('%.0f', math.max(now_us, (number(known[4], horizon * 1000000) or 0) + 1))
    local til = string.format('%.0f', now_ms + ARGV[2])
    redis.call('HSET', key, 'n', fence, 'c:' .. type, ARGV[1] .. ':' .. fence .. ':' .. til)
    redis.call('HDEL', key, 'e:' .. type)
    redis.call('EXPIRE', key, ARGV[3])
  end
  local at = 3 * i - 1
  answer[at], answer[at + 1], answer[at + 2] = found, fence, success or ''
end
return answer
