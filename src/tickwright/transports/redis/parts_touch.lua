-- touch: a process works on this report. KEYS: its hash. ARGV: epoch, life in ms. Returns 1, or 0 where there is no hash of
-- this epoch: also where the report is over.
if redis.call('TYPE', KEYS[1])['ok'] ~= 'hash' then
  return 0
end
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
