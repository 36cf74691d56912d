-- A trigger of a statement also fires where no row was found. The claim of a consumer that has nothing to do is such a statement, so it
-- notified all consumers and producers, itself among them, which then looked again, without end. Forward on a live system.
CREATE OR REPLACE TRIGGER ring_batches AFTER INSERT OR UPDATE OF status, next_slot_at ON tickwright.batches
  FOR EACH ROW EXECUTE FUNCTION tickwright.ring_batches();
CREATE OR REPLACE TRIGGER ring_batches AFTER INSERT OR UPDATE OF status, paused_at ON tickwright.executions
  FOR EACH ROW EXECUTE FUNCTION tickwright.ring_batches();
