-- owner: which installation owns a prefix. KEYS: the prefix's mark. ARGV: this installation. The first one owns it; returns the owner.
if redis.call('SET', KEYS[1], ARGV[1], 'NX') then
  return ARGV[1]
end
return redis.call('GETRANGE', KEYS[1], 0, 99)  -- bounded: the value is not trusted
