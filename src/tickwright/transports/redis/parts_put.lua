-- put: one listener's part, once. KEYS: the report's hash. ARGV: epoch, listener, data, note, life in ms, nonce.
-- Fields: record, the nonce of the record that it belongs to; epoch; per listener its name with the data and done:<listener> with the note; queryDoneCount, the number of done:
-- fields, counted again each time. Of a report that is over: record and status.
-- Returns {0, note} stored; {1, note} already there, the note of the first put; {2, ''} stale: a newer epoch's hash, or over;
-- {3, ''} invalid: no hash, or one without an epoch that we write; {4, ''} not ours: of a record of the same number in another
-- database. Nothing is written then.
local key, epoch, listener, data, note, life, nonce = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local kind = redis.call('TYPE', key)['ok']
if kind ~= 'none' and kind ~= 'hash' then
  return {3, ''}
end

if kind == 'hash' then
  local known = redis.call('HMGET', key, 'epoch', 'status', 'record')
  local sound = known[1] and #known[1] <= 15 and string.match(known[1], '^[1-9]%d*$')
  if not sound and not known[2] then
    return {3, ''}
  end
  if known[3] ~= nonce then
    return {4, ''}
  end
  if known[2] or tonumber(known[1]) > tonumber(epoch) then
    if redis.call('PTTL', key) < 0 then
      redis.call('PEXPIRE', key, life)
    end
    return {2, ''}
  end
  if tonumber(known[1]) < tonumber(epoch) then
    redis.call('DEL', key)
  end
end

local mark, code = 'done:' .. listener, 0
if redis.call('HSETNX', key, mark, note) == 0 then
  if redis.call('HEXISTS', key, listener) == 1 then
    code = 1
    note = redis.call('HGET', key, mark)
  else -- no put writes a mark without data, so the part is not stored: store it with this note
    redis.call('HSET', key, mark, note)
  end
end
if code == 0 then
  redis.call('HSET', key, 'record', nonce, 'epoch', epoch, listener, data)
end

local count = 0
for _, field in ipairs(redis.call('HKEYS', key)) do
  if string.sub(field, 1, 5) == 'done:' then
    count = count + 1
  end
end
redis.call('HSET', key, 'queryDoneCount', count)
redis.call('PEXPIRE', key, life)
return {code, note}
