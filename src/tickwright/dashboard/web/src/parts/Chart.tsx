/** Lines over time (uPlot). The legend shows the figures under the pointer, or the last ones. Import it lazily. */
import { useElementSize } from "@mantine/hooks";
import { useEffect, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useComputedColorScheme } from "@mantine/core";
import { zone } from "../app/prefs";
import classes from "./parts.module.css";

export interface Line {
  name: string;
  /** One of the dashboard's tones, or a CSS colour. */
  color: string;
  values: readonly (number | null)[];
  /** Fill the area below the line. */
  fill?: boolean;
}

interface Props {
  /** Describes the chart for screen readers. */
  label: string;
  /** Instants in seconds since 1970, ascending. */
  at: readonly number[];
  lines: readonly Line[];
  format: (value: number) => string;
  height?: number;
  /** The figures are counts: ticks are whole numbers. */
  whole?: boolean;
}

export function Chart({ label, at, lines, format, height = 150, whole = false }: Props) {
  const { ref, width } = useElementSize();
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [pointed, setPointed] = useState<number | null>(null);
  const scheme = useComputedColorScheme("light");
  const shown = zone.use();
  const shape = lines.map((line) => `${line.name}${line.color}`).join();
  const data = [at, ...lines.map((line) => line.values)] as uPlot.AlignedData;

  useEffect(() => {
    if (host.current === null || width === 0) return;
    const made = new uPlot(options({ lines, format, width, height, whole, utc: shown === "utc", setPointed }), data, host.current);
    plot.current = made;
    return () => made.destroy();
    // only a change of these makes a new chart; the figures are set below
  }, [width, height, shape, scheme, shown]);
  useEffect(() => plot.current?.setData(data), [data]);

  const index = pointed ?? at.length - 1;
  return (
    <figure className={classes.chart} style={{ margin: 0 }} aria-label={label} ref={ref}>
      <div ref={host} style={{ height }} aria-hidden="true" />
      <figcaption className={classes.legend}>
        {lines.map((line) => (
          <span key={line.name} style={{ "--series": css(line.color) } as React.CSSProperties}>
            {line.name} {line.values[index] == null ? "–" : format(line.values[index])}
          </span>
        ))}
      </figcaption>
    </figure>
  );
}

const WHOLE = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000].flatMap((power) => [power, 2 * power, 5 * power]);
const css = (color: string) => (/^[a-z]+$/.test(color) ? `var(--${color})` : color);
const drawn = (color: string) => getComputedStyle(document.documentElement).getPropertyValue(`--${color}`).trim() || color;

interface Shape {
  lines: readonly Line[];
  format: (value: number) => string;
  width: number;
  height: number;
  whole: boolean;
  utc: boolean;
  setPointed: (index: number | null) => void;
}

function options({ lines, format, width, height, whole, utc, setPointed }: Shape): uPlot.Options {
  const quiet = drawn("quiet");
  const grid = { stroke: drawn("line-faint"), width: 1 };
  const axis = { stroke: quiet, grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  return {
    width,
    height,
    legend: { show: false },
    padding: [8, 8, 0, 0],
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 5 } },
    ...(utc ? { tzDate: (seconds: number) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") } : {}),
    scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.08 : 1] } },
    axes: [
      { ...axis, space: 70, size: 26, values: (_plot, splits) => splits.map((at) => clock(at, utc)) },
      { ...axis, size: 54, space: 32, ...(whole ? { incrs: WHOLE } : {}), values: (_plot, splits) => splits.map((value) => format(value)) },
    ],
    series: [
      {},
      ...lines.map((line) => ({
        stroke: drawn(line.color),
        width: 1.5,
        points: { show: false },
        ...(line.fill ? { fill: `${drawn(line.color)}22` } : {}),
      })),
    ],
    hooks: { setCursor: [(plot) => setPointed(plot.cursor.idx ?? null)] },
  };
}

function clock(seconds: number, utc: boolean): string {
  const date = new Date(seconds * 1000);
  return (utc ? date.toISOString().slice(11, 19) : date.toTimeString().slice(0, 8)).replace(/:00$/, "");
}
