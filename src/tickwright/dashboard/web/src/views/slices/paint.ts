/** Draws the heat map. Its colours are CSS variables that are read at each drawing, so that they fit both schemes. */
import { beginOf, type Grid } from "./heat";

export const LABEL_PX = 96;
export const TOP_PX = 18;
export const LINE_PX = 18;

interface Picture {
  grid: Grid;
  strength: readonly number[];
  tone: string;
  nowMs: number;
  chosen: number | null;
  width: number;
  height: number;
  utc: boolean;
}

/** The least opacity at which a cell with a figure differs visibly from one without. */
const WEAKEST = 0.14;

export function paint(context: CanvasRenderingContext2D, picture: Picture): void {
  const { width, height, grid } = picture;
  const sharp = window.devicePixelRatio || 1;
  context.canvas.width = Math.round(width * sharp);
  context.canvas.height = Math.round(height * sharp);
  context.setTransform(sharp, 0, 0, sharp, 0, 0);
  context.clearRect(0, 0, width, height);
  const cellWidth = (width - LABEL_PX) / grid.columns;
  labels(context, picture, cellWidth);
  cells(context, picture, cellWidth);
  marks(context, picture, cellWidth);
}

const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function labels(context: CanvasRenderingContext2D, { grid, utc }: Picture, cellWidth: number): void {
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = colour("quiet");
  context.textBaseline = "middle";
  for (let line = 0; line < grid.lines; line += 1) {
    context.fillText(lineText(beginOf(grid, line * grid.columns), grid, utc), 0, TOP_PX + (line + 0.5) * LINE_PX);
  }
  const every = Math.ceil(34 / cellWidth);
  for (let column = 0; column < grid.columns; column += every) {
    context.fillText(columnText(beginOf(grid, column), grid, utc), LABEL_PX + column * cellWidth, TOP_PX / 2);
  }
}

function cells(context: CanvasRenderingContext2D, { grid, strength, tone }: Picture, cellWidth: number): void {
  const strong = colour(tone);
  const nothing = colour("line-faint");
  const gap = cellWidth > 6 ? 1 : 0.5;
  grid.cells.forEach((cell, place) => {
    const x = LABEL_PX + (place % grid.columns) * cellWidth;
    const y = TOP_PX + Math.floor(place / grid.columns) * LINE_PX;
    const value = strength[place] ?? 0;
    context.globalAlpha = cell === undefined ? 0.5 : value === 0 ? 1 : WEAKEST + (1 - WEAKEST) * value;
    context.fillStyle = value === 0 ? nothing : strong;
    context.fillRect(x, y, cellWidth - gap, LINE_PX - 1);
  });
  context.globalAlpha = 1;
}

/** Draw the marks of the current time and of the chosen cell. */
function marks(context: CanvasRenderingContext2D, { grid, nowMs, chosen }: Picture, cellWidth: number): void {
  const now = (nowMs - grid.beginMs) / grid.stepMs;
  if (now >= 0 && now < grid.cells.length) {
    context.fillStyle = colour("quiet");
    context.fillRect(LABEL_PX + (now % grid.columns) * cellWidth, TOP_PX + Math.floor(now / grid.columns) * LINE_PX, 2, LINE_PX - 1);
  }
  if (chosen === null) return;
  context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--mantine-color-text").trim();
  context.lineWidth = 2;
  context.strokeRect(LABEL_PX + (chosen % grid.columns) * cellWidth, TOP_PX + Math.floor(chosen / grid.columns) * LINE_PX, Math.max(2, cellWidth - 1), LINE_PX - 1);
}

function isoOf(at: number, utc: boolean): string {
  const date = new Date(at);
  return new Date(at - (utc ? 0 : date.getTimezoneOffset() * 60_000)).toISOString();
}

function lineText(at: number, grid: Grid, utc: boolean): string {
  const iso = isoOf(at, utc);
  return grid.stepMs >= 3_600_000 ? iso.slice(0, 10) : `${iso.slice(5, 10)} ${iso.slice(11, 16)}`;
}

function columnText(at: number, grid: Grid, utc: boolean): string {
  const iso = isoOf(at, utc);
  return grid.stepMs >= 3_600_000 ? iso.slice(11, 16) : `:${iso.slice(14, 16)}`;
}
