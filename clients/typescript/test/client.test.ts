import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, JobFailed, TickwrightError, Unreachable } from "../src/index.js";
import { client, endpoint, worker, working, type Jobs } from "./kit.js";

test("a job is scheduled once for a key, and read", async () => {
  const options = { delay: "1h", key: `once-${Date.now()}`, priority: 7, maxAttempts: 4 };
  const first = await client.schedule("client.echo", { n: 1 }, options);
  const again = await client.schedule("client.echo", { n: 1 }, options);
  assert.deepEqual([first.created, again.created, again.id], [true, false, first.id]);
  const job = await client.get<"client.echo">(first.id);
  assert.deepEqual([job.payload.n, job.status, job.priority, job.max_attempts], [1, "pending", 7, 4]);
  assert.equal(await client.cancel(first.id), "cancelled");
});

test("many jobs are scheduled in one request, and listed page by page", async () => {
  const at = new Date(Date.now() + 3_600_000);
  const jobs = Array.from({ length: 25 }, (_, n) => ({ type: "client.slow" as const, payload: { n }, at }));
  const done = await client.scheduleMany(jobs);
  assert.deepEqual([done.created, done.rejected], [25, 0]);
  const ids: number[] = [];
  for await (const job of client.listAll({ type: "client.slow", status: "pending", executeFrom: at, limit: 10 })) ids.push(job.id);
  assert.equal(new Set(ids).size, 25);
  for (const id of ids) await client.cancel(id);
});

test("the result of a job is waited for, and a failed job is an error", async () => {
  const running = worker()
    .handle("client.echo", (job) => ({ n: job.payload.n + 1 }))
    .handle("client.fails", () => Promise.reject(new TypeError("no such invoice")));
  await working(running, async () => {
    const { id } = await client.schedule("client.echo", { n: 41 });
    assert.deepEqual(await client.result<"client.echo">(id, { timeout: 30_000 }), { n: 42 });
    const failed = await client.schedule("client.fails", { how: "throws" }, { maxAttempts: 1 });
    await assert.rejects(client.result(failed.id, { timeout: 30_000 }), (error: JobFailed) => {
      assert.deepEqual([error.job.status, error.message], ["failed", "TypeError: no such invoice"]);
      return true;
    });
  });
});

test("a result is waited for with one request, however long the job takes", async () => {
  const asked: string[] = [];
  const counting: typeof fetch = (input, init) => {
    if (init?.method === "GET") asked.push(String(input));
    return fetch(input, init);
  };
  const over = new Client<Jobs>({ ...endpoint, fetch: counting });
  const { id } = await over.schedule("client.echo", { n: 1 });
  const waiting = over.result<"client.echo">(id, { timeout: 30_000 });
  const running = worker().handle("client.echo", (job) => ({ n: job.payload.n + 1 }));
  await working(running, async () => assert.deepEqual(await waiting, { n: 2 }));
  assert.equal(asked.length, 1);
  assert.match(asked[0]!, /[?]wait=10000ms$/);
});

test("a server that cannot wait is asked again and again", async () => {
  let waits = 0;
  const earlier: typeof fetch = (input, init) => {
    if (!String(input).includes("wait=")) return fetch(input, init);
    waits += 1;
    const body = JSON.stringify({ status: 400, code: "unknown_parameter", detail: "no parameter 'wait'" });
    return Promise.resolve(new Response(body, { status: 400, headers: { "content-type": "application/problem+json" } }));
  };
  const over = new Client<Jobs>({ ...endpoint, fetch: earlier });
  const { id } = await over.schedule("client.echo", { n: 1 });
  const running = worker().handle("client.echo", (job) => job.payload);
  await working(running, async () => assert.deepEqual(await over.result<"client.echo">(id, { timeout: 30_000 }), { n: 1 }));
  assert.equal(waits, 1);
});

test("errors have the server's stable code, or say that there was no answer", async () => {
  const schedule = (over: Client) => over.schedule("no.such.type", {});
  await assert.rejects(schedule(new Client(endpoint)), (error: TickwrightError) => {
    assert.deepEqual([error.code, error.status, error.retriable], ["unknown_task_type", 422, false]);
    return true;
  });
  await assert.rejects(schedule(new Client({ ...endpoint, apiKey: "tw_wrong" })), { code: "unauthenticated" });
  await assert.rejects(schedule(new Client({ ...endpoint, url: "http://127.0.0.1:9" })), Unreachable);
});

test("a wait for a result ends in time", async () => {
  const { id } = await client.schedule("client.echo", { n: 1 }, { delay: "1h" });
  await assert.rejects(client.result(id, { timeout: 200 }), { name: "TimeoutError" });
  await client.cancel(id);
});
