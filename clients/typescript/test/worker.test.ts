import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, Fail, Retry, Snooze, type StopReason } from "../src/index.js";
import { client, endpoint, eventually, promised, worker, working, type Jobs } from "./kit.js";

test("jobs run up to the concurrency, and each of them once", async () => {
  const seen: number[] = [];
  let [now, most] = [0, 0];
  const running = worker({ concurrency: 5 }).handle("client.echo", async (job) => {
    most = Math.max(most, ++now);
    seen.push(job.payload.n);
    await new Promise((resolve) => setTimeout(resolve, 5));
    now -= 1;
    return job.payload;
  });
  await client.scheduleMany(Array.from({ length: 100 }, (_, n) => ({ type: "client.echo" as const, payload: { n } })));
  await working(running, () => eventually(async () => seen.length >= 100));
  assert.equal(new Set(seen).size, 100);
  assert.equal(seen.length, 100);
  assert.ok(most <= 5);
});

test("a handler says by its error what follows", async () => {
  const attempts: string[] = [];
  const running = worker().handle("client.fails", (job) => {
    attempts.push(`${job.payload.how} ${job.attempt}`);
    if (job.payload.how === "final") throw new Fail("no such order");
    if (job.payload.how === "retry" && job.attempt === 1) throw new Retry("again", { after: "100ms" });
    if (job.payload.how === "snooze" && attempts.filter((one) => one.startsWith("snooze")).length === 1) throw new Snooze(100);
    return "done";
  });
  await working(running, async () => {
    const ids = await Promise.all(["final", "retry", "snooze"].map((how) => client.schedule("client.fails", { how }, { maxAttempts: 3 })));
    await assert.rejects(client.result(ids[0]!.id, { timeout: 30_000 }), /no such order/);
    for (const one of ids.slice(1)) assert.equal(await client.result(one.id, { timeout: 30_000 }), "done");
  });
  assert.deepEqual(attempts.sort(), ["final 1", "retry 1", "retry 2", "snooze 1", "snooze 1"]);
});

test("a last attempt begins before it runs", async () => {
  const running = worker().handle("client.last", (job) => job.payload.n);
  await working(running, async () => {
    const { id } = await client.schedule("client.last", { n: 3 }, { maxAttempts: 1 });
    assert.equal(await client.result(id, { timeout: 30_000 }), 3);
  });
});

test("a cancelled job aborts its handler, and progress is seen", async () => {
  const started = promised<number>();
  const stopped = promised<StopReason>();
  const running = worker({ lease: "2s" }).handle("client.slow", async (job) => {
    assert.equal(await job.progress({ done: 0.5 }), true);
    started.fulfil(job.id);
    await new Promise<void>((resolve) => job.signal.addEventListener("abort", () => resolve()));
    stopped.fulfil(job.signal.reason as StopReason);
    job.signal.throwIfAborted();
    return "never";
  });
  await working(running, async () => {
    const { id } = await client.schedule("client.slow", { n: 1 });
    assert.equal(await started.promise, id);
    assert.deepEqual((await client.get(id)).progress, { done: 0.5 });
    assert.equal(await client.cancel(id), "requested");
    assert.equal(await stopped.promise, "cancelled");
    await eventually(async () => (await client.get(id)).status === "cancelled");
  });
});

test("an attempt beyond its timeout is aborted and fails", async () => {
  const running = worker().handle("client.slow", async (job) => {
    await new Promise<void>((resolve) => job.signal.addEventListener("abort", () => resolve()));
    return "too late";
  });
  await working(running, async () => {
    const { id } = await client.schedule("client.slow", { n: 1 }, { timeout: "100ms", maxAttempts: 1 });
    await assert.rejects(client.result(id, { timeout: 30_000 }), /timeout: stopped after 100 ms/);
  });
});

test("a stop lets a running attempt end, and leaves the rest to others", async () => {
  const started = promised<void>();
  const release = promised<void>();
  const first = worker({ concurrency: 1 }).handle("client.slow", async () => {
    started.fulfil();
    await release.promise;
    return "first";
  });
  const done = first.run({ signals: false });
  const running = await client.schedule("client.slow", { n: 1 });
  await started.promise;
  const waiting = await client.schedule("client.slow", { n: 2 });
  first.stop();
  release.fulfil();
  await done;
  assert.equal((await client.get(running.id)).result, "first");
  const second = worker().handle("client.slow", () => "second");
  await working(second, async () => assert.equal(await client.result(waiting.id, { timeout: 30_000 }), "second"));
});

test("a worker that cannot renew its lease stops its attempts, and works on under a new session", async () => {
  const reasons: unknown[] = [];
  let broken = true;
  const throughBroken: typeof fetch = (input, init) => {
    const isHeartbeat = String(input).endsWith("/heartbeat");
    return broken && isHeartbeat ? Promise.reject(new TypeError("no route")) : fetch(input, init);
  };
  const running = worker({ client: new Client<Jobs>({ ...endpoint, fetch: throughBroken }), lease: "2s" });
  running.handle("client.slow", async (job) => {
    if (!broken) return "second time";
    await new Promise<void>((resolve) => job.signal.addEventListener("abort", () => resolve()));
    reasons.push(job.signal.reason);
    broken = false;
    return "dropped";
  });
  await working(running, async () => {
    const { id } = await client.schedule("client.slow", { n: 1 }, { maxAttempts: 3 });
    assert.equal(await client.result(id, { timeout: 40_000 }), "second time");
  });
  assert.deepEqual(reasons, ["lost"]);
});

test("a call that gets no answer ends with its session", async () => {
  let sessions = 0;
  const silent: typeof fetch = (input, init) => {
    const name = String(input).split("/").pop();
    if (name === "register") sessions += 1;
    if (sessions > 1 || (name !== "heartbeat" && name !== "results")) return fetch(input, init);
    return new Promise((_, reject) => init?.signal?.addEventListener("abort", () => reject(new TypeError("no answer"))));
  };
  const running = worker({ client: new Client<Jobs>({ ...endpoint, fetch: silent }), lease: "2s" });
  running.handle("client.slow", (job) => `attempt ${job.attempt}`);
  await working(running, async () => {
    const { id } = await client.schedule("client.slow", { n: 1 }, { maxAttempts: 3 });
    assert.equal(await client.result(id, { timeout: 40_000 }), "attempt 2");
  });
});
