import assert from "node:assert/strict";
import { test } from "node:test";

import { Fail, Snooze, Throttled, type BatchChunk, type EntityTask, type Poll } from "../src/index.js";
import { promised, worker, working } from "./kit.js";

// The server of the tests has one piece of work of each kind, and checks what has become of it.

test("polls, tasks and chunks are worked by one worker, and each says by its error what follows", async () => {
  const seen: string[] = [];
  const [polled, ran, worked] = [promised<Poll>(), promised<EntityTask<{ url: string }>>(), promised<BatchChunk<{ amount: number }>>()];
  const running = worker({ concurrency: 4 })
    .poll("client.partner", async (poll) => {
      seen.push("poll");
      if (seen.filter((one) => one === "poll").length === 1) throw new Throttled("1s");
      assert.equal(await poll.progress({ asked: 1 }), true);
      polled.fulfil(poll);
      return { status: "picked_up", at: new Date("2026-01-02T03:04:05Z"), events: [{ at: "2026-01-02T03:04:05Z", text: "hub" }] };
    })
    .task<{ url: string }>("CLIENT_TASK", (task) => {
      seen.push("task");
      if (seen.filter((one) => one === "task").length === 1) throw new Snooze(100);
      if (seen.filter((one) => one === "task").length === 2) throw new TypeError("no route");
      ran.fulfil(task);
    })
    .chunk<{ amount: number }>("client.chunk", (chunk) => {
      seen.push("chunk");
      if (chunk.number > 0) throw new Fail("there is one chunk");
      worked.fulfil(chunk);
      const actions = chunk.members.filter((one) => one.fields.amount > 10).map((one) => ({ client_id: one.id, payload: one.fields }));
      return { actions, skipped: [{ client_id: "1", problem: "too small" }] };
    });
  await working(running, async () => {
    const poll = await polled.promise;
    assert.deepEqual([poll.externalId, poll.accountId, poll.partner, poll.dueAt instanceof Date], ["T1", "shop", "client.partner", true]);
    const task = await ran.promise;
    assert.deepEqual([task.entityCode, task.module, task.party.url, task.lastExecutedAt], ["HUB-1", "CLIENT_TASK", "https://hub.example", null]);
    const chunk = await worked.promise;
    assert.deepEqual([chunk.batch, chunk.members.map((one) => one.id)], ["client.chunk", ["1", "2", "3"]]);
  });
  assert.deepEqual(seen.sort(), ["chunk", "poll", "poll", "task", "task", "task"]);
});
