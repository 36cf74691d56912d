/**
 * The live overview: one stream for the whole dashboard, closed while the tab is hidden.
 *
 * If the stream fails (a proxy that buffers, too many streams), the snapshot is polled instead, and the stream is
 * opened again later. The figures are stale if the last snapshot is older than five seconds or is marked stale itself.
 */
import { useEffect, useSyncExternalStore } from "react";
import { address, get, Problem, type Schemas } from "../api/client";
import { parse } from "../api/json";
import { learn, now, useSecond } from "./clock";
import { updating } from "./prefs";
import { queries } from "./queries";
import { extended, type Series } from "./series";

export type Overview = Schemas["OverviewView"];
export type Source = "starting" | "stream" | "polling" | "held" | "unavailable";
interface Live {
  overview: Overview | null;
  series: Series | null;
  /** The server's time when the last snapshot was received, in milliseconds. */
  receivedAt: number;
  source: Source;
  problem: Problem | null;
}

const STALE_MS = 5_000;
const POLL_MS = 3_000;
const RETRY_STREAM_MS = 20_000;
let live: Live = { overview: null, series: null, receivedAt: now(), source: "starting", problem: null };
const listeners = new Set<() => void>();

function update(more: Partial<Live>): void {
  live = { ...live, ...more };
  listeners.forEach((listener) => listener());
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Return what `select` takes from the overview, `null` before the first snapshot; the component renders again when that changes. */
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
  /** The code of the problem, if there is one. */
  code: string | null;
}

/** Return where the overview comes from, since when it is stale, and why. */
export function useFreshness(): Freshness {
  useSecond();
  const { overview, receivedAt, source, problem } = useSyncExternalStore(subscribe, () => live);
  const markedStale = overview?.stale_since == null ? null : Date.parse(overview.stale_since);
  const staleSince = markedStale ?? (now() - receivedAt > STALE_MS ? receivedAt : null);
  return { source, staleSince, why: problem?.message ?? overview?.stale_why ?? null, code: problem?.code ?? null };
}

/** Show a snapshot. One that cannot be read changes nothing, and this throws. */
function accept(overview: Overview, source: Source): void {
  const at = Date.parse(overview.at);
  if (Number.isNaN(at)) throw new TypeError("it has no time");
  const isNew = live.overview?.at !== overview.at;
  const series = overview.series ?? (isNew ? extended(live.series, overview) : live.series);
  refetchChanged(live.overview, overview);
  learn(at, true);
  update({ overview, series, receivedAt: now(), source, problem: null });
}

/** Return the problem to show: no snapshot was received, or it cannot be read. The last figures stay. */
function problemOf(error: unknown): Problem {
  if (error instanceof Problem) return error;
  const detail = error instanceof Error ? error.message : String(error);
  return new Problem(0, "snapshot_broken", `The snapshot cannot be read: ${detail}. The dashboard requests another one; if this persists, reload it.`);
}

/** Fetch the lists again that the snapshot marks as changed, if a view shows them. */
function refetchChanged(before: Overview | null, after: Overview): void {
  if (before === null) return;
  for (const [name, mark] of Object.entries(after.changes)) {
    if (before.changes[name] !== mark) void queries.invalidateQueries({ queryKey: [name], refetchType: "active" });
  }
}

/** Keep the overview current while this is mounted; renders nothing. */
export function LiveOverview(): null {
  const held = updating.use() === "held";
  useEffect(() => (held ? stopUpdates() : follow()), [held]);
  return null;
}

function stopUpdates(): () => void {
  update({ source: "held" });
  return () => undefined;
}

function follow(): () => void {
  let stream: EventSource | null = null;
  let polling: ReturnType<typeof setInterval> | undefined;
  let retry: ReturnType<typeof setTimeout> | undefined;
  let isStopped = false;

  async function poll(): Promise<void> {
    try {
      const overview = await get("/v1/overview");
      if (stream?.readyState !== EventSource.OPEN) accept(overview, "polling");
    } catch (error) {
      update({ source: "unavailable", problem: problemOf(error) });
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
    await poll(); // the snapshot has the figures of the last minutes, the stream does not
    if (!isStopped && !document.hidden) open();
  }
  function open(): void {
    close();
    const opened = new EventSource(address("/v1/stream"));
    stream = opened;
    opened.addEventListener("overview", (event: MessageEvent<string>) => {
      stopPolling();
      try {
        accept(parse(event.data) as Overview, "stream");
      } catch (error) {
        update({ problem: problemOf(error) });
      }
    });
    opened.addEventListener("error", () => {
      startPolling();
      if (opened.readyState === EventSource.CLOSED) retry = setTimeout(open, RETRY_STREAM_MS);
    });
  }
  function close(): void {
    clearTimeout(retry);
    stopPolling();
    stream?.close();
    stream = null;
  }
  const onVisibility = () => (document.hidden ? close() : void start());
  document.addEventListener("visibilitychange", onVisibility);
  onVisibility();
  return () => {
    isStopped = true;
    document.removeEventListener("visibilitychange", onVisibility);
    close();
  };
}
