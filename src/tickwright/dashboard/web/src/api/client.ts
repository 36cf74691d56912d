/**
 * Typed calls of the REST API: `await get("/v1/jobs/{job_id}", { path: { job_id } })` is the answer, or throws a Problem.
 *
 * The paths, parameters, bodies and answers are those of the OpenAPI document (`schema.d.ts`).
 */
import { parse, stringify } from "./json";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
type Method = "get" | "post" | "put" | "patch" | "delete";
type PathsOf<M extends Method> = {
  [P in keyof paths]: paths[P] extends Record<M, { responses: unknown }> ? P : never;
}[keyof paths];
type Done = 200 | 201 | 202 | 204;
type Content<R> = R extends { content: { "application/json": infer T } } ? T : undefined;
type AnswerOf<O> = O extends { responses: infer R }
  ? { [S in keyof R]: S extends Done ? Content<R[S]> : never }[keyof R]
  : never;
type PathOf<O> = O extends { parameters: { path: infer X } } ? { path: X } : { path?: undefined };
type QueryOf<O> = O extends { parameters: { query?: infer X } } ? { query?: X } : { query?: undefined };
type BodyOf<O> = O extends { requestBody: { content: { "application/json": infer B } } }
  ? { body: B }
  : O extends { requestBody?: { content: { "application/json": infer B } } }
    ? { body?: B }
    : { body?: undefined };
type Options<O> = PathOf<O> & QueryOf<O> & BodyOf<O> & { signal?: AbortSignal };
type Rest<O> = Record<string, never> extends Options<O> ? [options?: Options<O>] : [options: Options<O>];
interface Loose {
  path?: Record<string, unknown>;
  query?: Record<string, unknown>;
  body?: unknown;
  signal?: AbortSignal;
}

const TIMEOUT_MS = 20_000;
const NO_ANSWER = "The server does not answer. The dashboard tries again while it is open.";
const NOT_OURS = "This answer is not from the API; it may be from a proxy or the sign-in page of a network. Reload the dashboard.";

/** A problem document of the API (RFC 9457): a stable `code`, and a text that says what to do. */
export class Problem extends Error {
  override readonly name = "Problem";
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
    readonly fields: Readonly<Record<string, unknown>> = {},
  ) {
    super(detail);
  }
}

const state: { csrf: string | null; onSignedOut: () => void; onDate: (at: number) => void } = {
  csrf: null,
  onSignedOut: () => undefined,
  onDate: () => undefined,
};

/** Set the CSRF token that the client sends, and its callbacks: the session has ended, the server's time is known. */
export function connect(more: Partial<typeof state>): void {
  Object.assign(state, more);
}

/** Return an address below that of the dashboard, which may be served under any prefix. */
export function address(path: string): string {
  return new URL(path.replace(/^\//, ""), document.baseURI).href;
}

export const get = <P extends PathsOf<"get">>(path: P, ...rest: Rest<paths[P]["get"]>) =>
  call("GET", path, rest[0]) as Promise<AnswerOf<paths[P]["get"]>>;
export const post = <P extends PathsOf<"post">>(path: P, ...rest: Rest<paths[P]["post"]>) =>
  call("POST", path, rest[0]) as Promise<AnswerOf<paths[P]["post"]>>;
export const put = <P extends PathsOf<"put">>(path: P, ...rest: Rest<paths[P]["put"]>) =>
  call("PUT", path, rest[0]) as Promise<AnswerOf<paths[P]["put"]>>;
export const patch = <P extends PathsOf<"patch">>(path: P, ...rest: Rest<paths[P]["patch"]>) =>
  call("PATCH", path, rest[0]) as Promise<AnswerOf<paths[P]["patch"]>>;
export const del = <P extends PathsOf<"delete">>(path: P, ...rest: Rest<paths[P]["delete"]>) =>
  call("DELETE", path, rest[0]) as Promise<AnswerOf<paths[P]["delete"]>>;

async function call(method: string, path: string, options: Loose = {}): Promise<unknown> {
  const headers = new Headers({ accept: "application/json" });
  if (options.body !== undefined) headers.set("content-type", "application/json");
  if (method !== "GET" && state.csrf !== null) headers.set("x-tickwright-csrf", state.csrf);
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const init: RequestInit = {
    method,
    headers,
    body: options.body === undefined ? null : stringify(options.body),
    signal: options.signal === undefined ? timeout : AbortSignal.any([options.signal, timeout]),
    credentials: "same-origin",
  };
  const response = await send(address(filled(path, options.path) + queried(options.query)), init, options.signal);
  const text = await response.text();
  if (!response.ok) throw problemOf(response, text);
  return text === "" ? undefined : parsed(response, text);
}

function parsed(response: Response, text: string): unknown {
  try {
    return parse(text);
  } catch {
    throw new Problem(response.status, "no_json", NOT_OURS);
  }
}

async function send(url: string, init: RequestInit, signal: AbortSignal | undefined): Promise<Response> {
  try {
    const response = await fetch(url, init);
    const date = Date.parse(response.headers.get("date") ?? "");
    if (!Number.isNaN(date)) state.onDate(date);
    return response;
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "no_answer", NO_ANSWER);
  }
}

/** The cookie's session has ended, or another key was signed in by another tab. */
const OTHER_KEY = "csrf_token_wrong";

function problemOf(response: Response, text: string): Problem {
  let body: Record<string, unknown> = {};
  try {
    body = (parse(text) ?? {}) as Record<string, unknown>;
  } catch {
    // no problem document: the answer is from a proxy between the browser and the API
  }
  const code = typeof body["code"] === "string" ? body["code"] : `http_${response.status}`;
  if (response.status === 401 || code === OTHER_KEY) state.onSignedOut();
  const detail = typeof body["detail"] === "string" ? body["detail"] : `The server answers ${response.status}.`;
  const wait = response.headers.get("retry-after");
  return new Problem(response.status, code, detail, wait === null ? body : { ...body, retry_after_s: Number(wait) });
}

function filled(path: string, values: Record<string, unknown> = {}): string {
  return path.replace(/\{(\w+)\}/g, (_, name: string) => segment(String(values[name])));
}

/** Return one segment of a path. An empty one and dots change the path, an unpaired surrogate has no UTF-8, and a path has a limit. */
function segment(text: string): string {
  if (!/^\.{0,2}$/.test(text) && !SURROGATE.test(text) && text.length <= SEGMENT_MAX) return encodeURIComponent(text);
  const why = text.length > SEGMENT_MAX ? `it has ${text.length.toLocaleString("en-GB")} characters` : "it consists of dots only, or contains an unpaired surrogate";
  throw new Problem(0, "invalid_name", text === "" ? "Enter a name." : `This name is not valid: ${why}.`);
}

const SURROGATE = /\p{Surrogate}/u;
const SEGMENT_MAX = 1_000;

function queried(values: Record<string, unknown> = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? (value as unknown[]) : [value]) {
      if (one !== undefined && one !== null && one !== "") query.append(name, String(one));
    }
  }
  const text = query.toString();
  return text === "" ? "" : `?${text}`;
}
