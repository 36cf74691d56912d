/** The heat map, drawn on one canvas. Arrows move from cell to cell; the figures of the chosen cell are below as text. */
import { useComputedColorScheme } from "@mantine/core";
import { useElementSize } from "@mantine/hooks";
import { useEffect, useRef, type KeyboardEvent, type PointerEvent } from "react";
import { zone } from "../../app/prefs";
import { instantText } from "../../parts/Instant";
import { beginOf, strengths, type Grid, type Measure } from "./heat";
import { LINE_PX, LABEL_PX, paint, TOP_PX } from "./paint";
import classes from "./slices.module.css";

interface Props {
  grid: Grid;
  measure: Measure;
  tone: string;
  nowMs: number;
  chosen: number | null;
  onChoose: (place: number) => void;
  onPoint: (place: number | null) => void;
}

export function HeatMap({ grid, measure, tone, nowMs, chosen, onChoose, onPoint }: Props) {
  const { ref, width } = useElementSize();
  const canvas = useRef<HTMLCanvasElement>(null);
  const scheme = useComputedColorScheme("light");
  const shown = zone.use();
  const height = TOP_PX + grid.lines * LINE_PX;

  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context || width === 0) return;
    paint(context, { grid, strength: strengths(grid, measure).of, tone, nowMs, chosen, width, height, utc: shown === "utc" });
  }, [grid, measure, tone, nowMs, chosen, width, height, scheme, shown]);

  function under(event: PointerEvent<HTMLCanvasElement>): number | null {
    const box = event.currentTarget.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - LABEL_PX) / ((width - LABEL_PX) / grid.columns));
    const line = Math.floor((event.clientY - box.top - TOP_PX) / LINE_PX);
    const inside = column >= 0 && column < grid.columns && line >= 0 && line < grid.lines;
    return inside ? line * grid.columns + column : null;
  }
  function onKeyDown(event: KeyboardEvent): void {
    const steps: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid.columns, ArrowDown: grid.columns };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const to = (chosen ?? grid.cells.length - 1) + step;
    if (to >= 0 && to < grid.cells.length) onChoose(to);
  }
  const where = chosen === null ? "no cell is chosen" : instantText(beginOf(grid, chosen), shown);
  return (
    <div ref={ref} className={classes.map} tabIndex={0} role="group" aria-label={`Heat map, ${measure}: ${where}. Arrows choose a cell.`} onKeyDown={onKeyDown}>
      <canvas
        ref={canvas}
        style={{ width: "100%", height }}
        aria-hidden="true"
        onPointerMove={(event) => onPoint(under(event))}
        onPointerLeave={() => onPoint(null)}
        onClick={(event) => {
          const place = under(event as unknown as PointerEvent<HTMLCanvasElement>);
          if (place !== null) onChoose(place);
        }}
      />
    </div>
  );
}
