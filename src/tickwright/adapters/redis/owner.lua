-- owner: whose prefix it is. KEYS: the prefix's mark. ARGV: the installation that asks. Whoever asks first has it; returns who has it.
if redis.call('SET', KEYS[1], ARGV[1], 'NX') then
  return ARGV[1]
end
return redis.call('GET', KEYS[1])
