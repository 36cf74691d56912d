/** Campaigns, and batches of programs: the same routes below two paths. */
import { get, post, type Schemas } from "../../api/client";
import type { Url } from "../../parts/useUrl";

export type Kind = "campaigns" | "batches";
export type Batch = Schemas["BatchView"];
export type BatchDetail = Schemas["BatchDetail"];
export type Act = "activate" | "deactivate" | "start" | "stop";

/** The lists that are fetched again after an action. */
export const INVALIDATES = ["campaigns", "batches", "executions"] as const;
export const ONE: Record<Kind, string> = { campaigns: "campaign", batches: "batch" };
export const TYPES = ["MANUAL", "AUTOMATIC"] as const;
export const STATUSES = ["SCHEDULED", "IDLE"] as const;

export function filterOf(url: Url) {
  return {
    q: url.one("q") || undefined,
    type: TYPES.find((one) => one === url.one("type")),
    status: STATUSES.find((one) => one === url.one("status")),
  };
}
type Query = ReturnType<typeof filterOf> & { cursor: string | undefined; limit: number };

export function listOf(kind: Kind, query: Query, signal: AbortSignal) {
  return kind === "campaigns" ? get("/v1/campaigns", { query, signal }) : get("/v1/batches", { query, signal });
}

export function detailOf(kind: Kind, name: string, signal: AbortSignal) {
  const options = { path: { name }, signal };
  return kind === "campaigns" ? get("/v1/campaigns/{name}", options) : get("/v1/batches/{name}", options);
}

export function explanationOf(kind: Kind, name: string, slot: string | undefined, signal: AbortSignal) {
  const options = { path: { name }, query: { slot }, signal };
  return kind === "campaigns" ? get("/v1/campaigns/{name}/explain", options) : get("/v1/batches/{name}/explain", options);
}

export function versionsOf(kind: Kind, name: string, cursor: string | undefined, signal: AbortSignal) {
  const options = { path: { name }, query: { cursor, limit: 50 }, signal };
  return kind === "campaigns" ? get("/v1/campaigns/{name}/versions", options) : get("/v1/batches/{name}/versions", options);
}

export function versionOf(kind: Kind, name: string, version: number, signal: AbortSignal) {
  const options = { path: { name, version }, signal };
  return kind === "campaigns" ? get("/v1/campaigns/{name}/versions/{version}", options) : get("/v1/batches/{name}/versions/{version}", options);
}

export function actOn(kind: Kind, name: string, act: Act): Promise<Schemas["BatchChange"]> {
  const path = { path: { name } };
  if (kind === "campaigns") {
    const calls = {
      activate: () => post("/v1/campaigns/{name}/activate", path),
      deactivate: () => post("/v1/campaigns/{name}/deactivate", path),
      start: () => post("/v1/campaigns/{name}/start", path),
      stop: () => post("/v1/campaigns/{name}/stop", path),
    };
    return calls[act]();
  }
  const calls = {
    activate: () => post("/v1/batches/{name}/activate", path),
    deactivate: () => post("/v1/batches/{name}/deactivate", path),
    start: () => post("/v1/batches/{name}/start", path),
    stop: () => post("/v1/batches/{name}/stop", path),
  };
  return calls[act]();
}
