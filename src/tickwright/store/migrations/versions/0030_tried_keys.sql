-- The relay asks for each new message with a key whether an older try of its key waits. Of the key its hash: a long one is too long for an index.
CREATE INDEX outbox_tried_keys ON tickwright.outbox (hashtextextended(destination, 0), hashtextextended(key, 0))
 WHERE least(attempts, 1) = 1 AND key IS NOT NULL;
