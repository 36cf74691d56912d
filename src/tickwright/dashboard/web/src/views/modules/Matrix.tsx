/** Modules against windows: a cell is a window, the newest at the left; its tooltip has the figures. */
import { useQuery } from "@tanstack/react-query";
import { get, type Schemas } from "../../api/client";
import { updating, zone } from "../../app/prefs";
import { Answer } from "../../parts/Answer";
import { count } from "../../parts/Figure";
import { Instant, instantText } from "../../parts/Instant";
import classes from "./modules.module.css";

type Row = Schemas["ModuleWindows"];
type Window = Schemas["MatrixWindow"];
const SHOWN_MAX = 48;
const LABELS: Record<Window["state"], string> = { open: "open", done: "done", partly: "partly", missed: "missed", idle: "idle" };
const SIGNS: Record<Window["state"], string> = { open: "…", done: "", partly: "–", missed: "×", idle: "" };

interface Props {
  hours: number;
  module?: string | undefined;
  /** Hide modules that no entity is polled for. */
  polledOnly?: boolean;
}

export function Matrix({ hours, module, polledOnly = false }: Props) {
  const held = updating.use() === "held";
  const found = useQuery({
    queryKey: ["fanout", "windows", hours, module],
    queryFn: ({ signal }) => get("/v1/fanout/windows", { query: { hours, module }, signal }),
    refetchInterval: held ? false : 5_000,
  });
  return (
    <Answer of={found} lines={4}>
      {(windows) => <Lines of={windows.modules} hours={hours} polledOnly={polledOnly} />}
    </Answer>
  );
}

function Lines({ of: modules, hours, polledOnly }: { of: Row[]; hours: number; polledOnly: boolean }) {
  const rows = modules.filter((one) => !polledOnly || one.expected > 0 || one.windows.some((window) => window.state !== "idle" && window.state !== "open"));
  if (rows.length === 0) return null;
  return (
    <div className={classes.matrix} tabIndex={0} role="group" aria-label="Modules against windows">
      <table aria-label={`Modules against windows of the last ${hours} hours, newest first`}>
        <thead>
          <tr>
            <th scope="col">Module</th>
            <th scope="col">Polled</th>
            <th scope="col">Last success</th>
            <th scope="col">Windows, newest first</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((one) => (
            <Line key={one.name} of={one} />
          ))}
        </tbody>
      </table>
      <p className={classes.legend} aria-hidden="true">
        {Object.entries(LABELS).map(([state, label]) => (
          <span key={state}>
            <i data-state={state} /> {label}
          </span>
        ))}
      </p>
    </div>
  );
}

function Line({ of: one }: { of: Row }) {
  return (
    <tr>
      <th scope="row">
        {one.name} <span className={classes.quiet}>{one.paused ? "paused" : `every ${one.every}`}</span>
      </th>
      <td>{count(one.expected)}</td>
      <td>
        <Instant at={one.last_success_window_at} ago />
      </td>
      <td>
        <ol className={classes.windows} aria-label={`Windows of ${one.name}`}>
          {one.windows.slice(0, SHOWN_MAX).map((window) => (
            <Cell key={window.window_at} of={window} expected={one.expected} />
          ))}
        </ol>
      </td>
    </tr>
  );
}

function Cell({ of: window, expected }: { of: Window; expected: number }) {
  const shown = zone.use();
  const figures = `${count(window.succeeded)} of ${count(expected)} succeeded, ${count(window.failed)} failed, ${count(window.superseded)} superseded, ${count(window.expired)} expired`;
  const text = `${instantText(window.window_at, shown)}: ${LABELS[window.state]}; ${window.published === null ? "" : `published for ${count(window.published)}, `}${figures}`;
  return (
    <li data-state={window.state} title={text} aria-label={text}>
      {SIGNS[window.state]}
    </li>
  );
}
