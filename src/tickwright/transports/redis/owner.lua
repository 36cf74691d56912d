-- owner: whose prefix it is. KEYS: the prefix's mark. ARGV: the installation that asks. Whoever asks first has it; returns who has it.
if redis.call('SET', KEYS[1], ARGV[1], 'NX') then
  return ARGV[1]
end
return redis.call('GETRANGE', KEYS[1], 0, 99)  -- bounded: the value is not trusted
