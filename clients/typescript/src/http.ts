/** An answer of Tickwright that is an error; `code` is stable, and the message says what to do. */
export class TickwrightError extends Error {
  override readonly name = "TickwrightError";
  readonly code: string;
  readonly status: number;
  /** The fields of the problem document, such as `field` or `pointer`. */
  readonly details: Readonly<Record<string, unknown>>;

  constructor(status: number, details: Record<string, unknown>) {
    super(typeof details["detail"] === "string" ? details["detail"] : `HTTP status ${status}`);
    this.status = status;
    this.code = typeof details["code"] === "string" ? details["code"] : `http_${status}`;
    this.details = details;
  }

  /** Whether the same request may succeed later. */
  get retriable(): boolean {
    return this.status === 429 || this.status >= 500 || this.code === "busy";
  }
}

/** No answer: the server was not reached, or the connection ended. The request may have taken effect. */
export class Unreachable extends Error {
  override readonly name = "Unreachable";
}

export interface Endpoint {
  /** Such as `https://jobs.example.com`, with the path prefix if there is one. */
  url: string;
  apiKey: string;
  /** Replaces the global `fetch`. */
  fetch?: typeof fetch;
}

export interface Call {
  body?: unknown;
  text?: string;
  type?: string;
  headers?: Record<string, string>;
  query?: Record<string, string | number | readonly string[] | undefined>;
  signal?: AbortSignal;
}

/** Sends requests and turns problem documents into errors. */
export class Http {
  readonly #base: string;
  readonly #key: string;
  readonly #fetch: typeof fetch;

  constructor(endpoint: Endpoint) {
    this.#base = endpoint.url.replace(/\/+$/, "");
    this.#key = endpoint.apiKey;
    this.#fetch = endpoint.fetch ?? fetch;
  }

  async send<Answer>(method: "GET" | "POST", path: string, call: Call = {}): Promise<Answer> {
    const body = call.text ?? (call.body === undefined ? undefined : JSON.stringify(call.body));
    const headers: Record<string, string> = { authorization: `Bearer ${this.#key}`, ...call.headers };
    if (body !== undefined) headers["content-type"] = call.type ?? "application/json";
    let status: number;
    let text: string;
    try {
      const answer = await this.#fetch(this.#base + path + queryText(call.query), {
        method,
        headers,
        ...(body === undefined ? {} : { body }),
        ...(call.signal === undefined ? {} : { signal: call.signal }),
      });
      status = answer.status;
      text = await answer.text();
    } catch (error) {
      if (call.signal?.aborted) throw call.signal.reason;
      throw new Unreachable(`${method} ${path}: no answer`, { cause: error });
    }
    if (status >= 400) throw new TickwrightError(status, parsed(text));
    return (text === "" ? undefined : JSON.parse(text)) as Answer;
  }
}

function queryText(query: Call["query"]): string {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    for (const one of Array.isArray(value) ? (value as readonly string[]) : value === undefined ? [] : [value]) {
      pairs.append(name, String(one));
    }
  }
  const text = pairs.toString();
  return text === "" ? "" : `?${text}`;
}

function parsed(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {}; // a proxy's page, for example
  }
}
