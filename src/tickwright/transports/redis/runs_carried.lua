-- carried: what the ledger has to be told. KEYS: the carry hash. ARGV: how many at most. Returns fields and values in turns.
return redis.call('HRANDFIELD', KEYS[1], ARGV[1], 'WITHVALUES')
