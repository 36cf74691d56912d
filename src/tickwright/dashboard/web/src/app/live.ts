/**
 * The overview, live: one stream for the whole page, closed while nobody sees it.
 *
 * Where the stream does not come through (a proxy that buffers, too many streams), the snapshot is asked for instead,
 * and the stream is tried again now and then. What is shown is stale when the last snapshot is older than five
 * seconds or says itself that it is.
 */
import { useEffect, useSyncExternalStore } from "react";
import { address, get, Problem, type Schemas } from "../api/client";
import { parse } from "../api/json";
import { learn, now, useSecond } from "./clock";
import { updating } from "./prefs";
import { queries } from "./queries";
import { extended, type Series } from "./series";

export type Overview = Schemas["OverviewView"];
export type Source = "starting" | "stream" | "polling" | "held" | "away";
interface Live {
  overview: Overview | null;
  series: Series | null;
  /** The server's time of the last snapshot that came, in milliseconds. */
  heardAt: number;
  source: Source;
  problem: Problem | null;
}

const STALE_MS = 5_000;
const POLL_MS = 3_000;
const RETRY_STREAM_MS = 20_000;
let live: Live = { overview: null, series: null, heardAt: now(), source: "starting", problem: null };
const listeners = new Set<() => void>();

function tell(more: Partial<Live>): void {
  live = { ...live, ...more };
  listeners.forEach((listener) => listener());
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Return what `select` picks of the overview, `null` before the first snapshot; drawn again when that changes. */
export function useOverview<T>(select: (overview: Overview) => T): T | null {
  return useSyncExternalStore(subscribe, () => (live.overview === null ? null : select(live.overview)));
}

/** Return the figures of the last fifteen minutes. */
export function useSeries(): Series | null {
  return useSyncExternalStore(subscribe, () => live.series);
}

export interface Freshness {
  source: Source;
  staleSince: number | null;
  why: string | null;
  /** Of the problem, where there is one. */
  code: string | null;
}

/** Return how the overview comes, since when it is stale, and why. */
export function useFreshness(): Freshness {
  useSecond();
  const { overview, heardAt, source, problem } = useSyncExternalStore(subscribe, () => live);
  const said = overview?.stale_since == null ? null : Date.parse(overview.stale_since);
  const staleSince = said ?? (now() - heardAt > STALE_MS ? heardAt : null);
  return { source, staleSince, why: problem?.message ?? overview?.stale_why ?? null, code: problem?.code ?? null };
}

/** Take a snapshot; one that cannot be taken leaves the page as it was, and throws. */
function heard(overview: Overview, source: Source): void {
  const at = Date.parse(overview.at);
  if (Number.isNaN(at)) throw new TypeError("it does not say of when it is");
  const isNew = live.overview?.at !== overview.at;
  const series = overview.series ?? (isNew ? extended(live.series, overview) : live.series);
  hint(live.overview, overview);
  learn(at, true);
  tell({ overview, series, heardAt: now(), source, problem: null });
}

/** Say why no snapshot came, or that the one that came is none; the page goes on with what it has. */
function missed(error: unknown): Problem {
  if (error instanceof Problem) return error;
  const detail = error instanceof Error ? error.message : String(error);
  return new Problem(0, "snapshot_broken", `The snapshot that came cannot be read: ${detail}. Another one is asked for; if it stays so, reload the page.`);
}

/** Lists that the snapshot says have changed are asked for again, if somebody looks at them. */
function hint(before: Overview | null, after: Overview): void {
  if (before === null) return;
  for (const [name, mark] of Object.entries(after.changes)) {
    if (before.changes[name] !== mark) void queries.invalidateQueries({ queryKey: [name], refetchType: "active" });
  }
}

/** Keep the overview coming while this is mounted; draws nothing. */
export function LiveOverview(): null {
  const held = updating.use() === "held";
  useEffect(() => (held ? hold() : follow()), [held]);
  return null;
}

function hold(): () => void {
  tell({ source: "held" });
  return () => undefined;
}

function follow(): () => void {
  let stream: EventSource | null = null;
  let polling: ReturnType<typeof setInterval> | undefined;
  let again: ReturnType<typeof setTimeout> | undefined;
  let isOver = false;

  async function poll(): Promise<void> {
    try {
      const overview = await get("/v1/overview");
      if (stream?.readyState !== EventSource.OPEN) heard(overview, "polling");
    } catch (error) {
      tell({ source: "away", problem: missed(error) });
    }
  }
  function startPolling(): void {
    if (polling !== undefined) return;
    void poll();
    polling = setInterval(() => void poll(), POLL_MS);
  }
  function stopPolling(): void {
    clearInterval(polling);
    polling = undefined;
  }
  async function start(): Promise<void> {
    await poll(); // the figures of the last minutes come with the snapshot, not with the stream
    if (!isOver && !document.hidden) open();
  }
  function open(): void {
    close();
    const opened = new EventSource(address("/v1/stream"));
    stream = opened;
    opened.addEventListener("overview", (event: MessageEvent<string>) => {
      stopPolling();
      try {
        heard(parse(event.data) as Overview, "stream");
      } catch (error) {
        tell({ problem: missed(error) });
      }
    });
    opened.addEventListener("error", () => {
      startPolling();
      if (opened.readyState === EventSource.CLOSED) again = setTimeout(open, RETRY_STREAM_MS);
    });
  }
  function close(): void {
    clearTimeout(again);
    stopPolling();
    stream?.close();
    stream = null;
  }
  const seen = () => (document.hidden ? close() : void start());
  document.addEventListener("visibilitychange", seen);
  seen();
  return () => {
    isOver = true;
    document.removeEventListener("visibilitychange", seen);
    close();
  };
}
