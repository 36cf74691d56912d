import { Client, Worker, type WorkerOptions } from "../src/index.js";

function needed(name: string): string {
  const value = process.env[name];
  if (value === undefined) throw new Error(`${name} is not set: run the tests by "make test-clients", which starts a server`);
  return value;
}

/** The types that the server of the tests has, all with the target `remote:shop`. */
export type Jobs = {
  "client.echo": { payload: { n: number }; result: { n: number } };
  "client.fails": { payload: { how: string }; result: string };
  "client.last": { payload: { n: number }; result: number };
  "client.slow": { payload: { n: number }; result: string };
};

export const endpoint = { url: needed("TICKWRIGHT_TEST_URL"), apiKey: needed("TICKWRIGHT_TEST_KEY") };
export const client = new Client<Jobs>(endpoint);

/** Make a worker of the pool of the tests. */
export function worker(options: Partial<WorkerOptions<Jobs>> = {}): Worker<Jobs> {
  return new Worker<Jobs>({ client, pool: "shop", ...options });
}

/** Run a worker for the length of `body`. */
export async function working(running: Worker<Jobs>, body: () => Promise<void>): Promise<void> {
  const done = running.run({ signals: false });
  try {
    await body();
  } finally {
    running.stop();
    await done;
  }
}

/** A promise, and the function that fulfils it. */
export function promised<T>(): { promise: Promise<T>; fulfil: (value: T) => void } {
  let fulfil: (value: T) => void = () => {};
  const promise = new Promise<T>((resolve) => {
    fulfil = resolve;
  });
  return { promise, fulfil };
}

/** Wait until a condition holds. */
export async function eventually(condition: () => Promise<boolean>, withinMs = 20_000): Promise<void> {
  const until = Date.now() + withinMs;
  while (!(await condition())) {
    if (Date.now() > until) throw new Error("it did not happen");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
