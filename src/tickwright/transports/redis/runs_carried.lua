-- carried: what the ledger does not have. KEYS: the carry hash. ARGV: how many at most. Returns fields and values, alternating.
return redis.call('HRANDFIELD', KEYS[1], ARGV[1], 'WITHVALUES')
