/**
 * The heat map as numbers: the position and strength of each cell. No drawing, no DOM.
 *
 * A line is an hour (a day if a cell is an hour), a column one slice of it. The strength of a cell is its figure
 * divided by the greatest one on the map, so that level load looks level.
 */
import type { Schemas } from "../../api/client";

/** A cell with all its figures: the API's answers leave none out. */
export type Cell = Required<Schemas["HeatCell"]>;
export type Heat = Omit<Schemas["SliceHeat"], "cells"> & { cells: Cell[] };

export const MEASURES = [
  { value: "expected", label: "Expected", tone: "busy" },
  { value: "selected", label: "Selected", tone: "busy" },
  { value: "published", label: "Published", tone: "busy" },
  { value: "polled", label: "Polled", tone: "good" },
  { value: "late", label: "Late", tone: "warn" },
  { value: "unanswered", label: "Unanswered", tone: "bad" },
] as const;
export type Measure = (typeof MEASURES)[number]["value"];

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;

export interface Grid {
  /** Cells by position, line by line; `undefined` where no tracker was due. */
  cells: (Cell | undefined)[];
  columns: number;
  lines: number;
  /** When the first line begins, in milliseconds. */
  beginMs: number;
  stepMs: number;
}

/** Return the cells of `heat` by position. */
export function gridOf(heat: Heat): Grid {
  const stepMs = heat.step_minutes * MINUTE_MS;
  const lineMs = heat.step_minutes >= 60 ? 24 * HOUR_MS : HOUR_MS;
  const beginMs = Math.floor(Date.parse(heat.from_at) / lineMs) * lineMs;
  const lines = Math.max(1, Math.ceil((Date.parse(heat.to_at) - beginMs) / lineMs));
  const columns = lineMs / stepMs;
  const cells = new Array<Cell | undefined>(lines * columns).fill(undefined);
  for (const cell of heat.cells) cells[Math.round((Date.parse(cell.from_at) - beginMs) / stepMs)] = cell;
  return { cells, columns, lines, beginMs, stepMs };
}

/** Return when the cell at a position begins, in milliseconds. */
export function beginOf(grid: Grid, place: number): number {
  return grid.beginMs + place * grid.stepMs;
}

/** Return the position of the cell that begins at an instant; `null` outside the map. */
export function placeOf(grid: Grid, at: string): number | null {
  const place = Math.round((Date.parse(at) - grid.beginMs) / grid.stepMs);
  return Number.isNaN(place) || place < 0 || place >= grid.cells.length ? null : place;
}

/** Return the strength of every cell, 0 to 1, and the greatest figure. */
export function strengths(grid: Grid, measure: Measure): { of: number[]; most: number } {
  const most = Math.max(0, ...grid.cells.map((cell) => cell?.[measure] ?? 0));
  return { of: grid.cells.map((cell) => (most === 0 ? 0 : (cell?.[measure] ?? 0) / most)), most };
}

/** Whether a cell is past and a selected poll has no answer: a replay can poll it again. */
export function differs(cell: Cell, nowMs: number, stepMs: number): boolean {
  return cell.unanswered > 0 && Date.parse(cell.from_at) + stepMs + SETTLED_MS < nowMs;
}

const SETTLED_MS = 2 * MINUTE_MS;
