/**
 * The graph of a workflow: a box for each group of nodes, and lines from what is waited for to what waits.
 *
 * Boxes are buttons over the lines, so that they are read, reached by the keyboard and themed like the rest; their text
 * says what their colours say. Arrows move to the nearest box in that direction. The first box that needs attention, or
 * that is worked on, is scrolled to.
 */
import { useEffect, useMemo, useRef, type KeyboardEvent } from "react";
import type { Schemas } from "../../api/client";
import { count } from "../../parts/Figure";
import { BOX, layOut, pathOf, type Layout } from "./layout";
import { some, spokenCounts, toneIn, toneOfCounts, total } from "./states";
import classes from "./workflows.module.css";

type GraphView = Schemas["GraphView"];
export type GraphGroup = Schemas["GraphGroup"];

interface Props {
  graph: GraphView;
  chosen: string;
  onChoose: (group: GraphGroup) => void;
}

export function Graph({ graph, chosen, onChoose }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const shape = JSON.stringify([graph.groups.map((group) => [group.id, group.level]), graph.edges]);
  const layout = useMemo(
    () => layOut(graph.groups, graph.edges.map((edge) => ({ from: edge.from_id, to: edge.to_id }))), // prettier-ignore
    [shape],
  );
  const start = graph.groups.find((group) => group.id === chosen) ?? ofInterest(graph.groups);
  useEffect(() => show(place.current, layout, start?.id), [layout]);
  const near = chosen === "" ? null : chosen;
  return (
    <div ref={place} className={classes.graph} role="group" aria-label={`Graph of ${graph.name}`} tabIndex={0}>
      <div className={classes.canvas} style={{ width: layout.width, height: layout.height }}>
        <svg width={layout.width} height={layout.height} aria-hidden="true">
          {layout.routes.map((route) => (
            <path key={`${route.from} ${route.to}`} d={pathOf(route.points)} data-near={near === route.from || near === route.to} />
          ))}
        </svg>
        {graph.groups.map((group) => {
          const at = layout.boxes.get(group.id);
          return at === undefined ? null : (
            <button
              key={group.id}
              type="button"
              className={classes.box}
              data-group={group.id}
              data-tone={toneOfCounts(group.states)}
              data-many={group.nodes > 1}
              aria-pressed={chosen === group.id}
              style={{ left: at.x, top: at.y, width: BOX.width, height: BOX.height }}
              title={titleOf(group)}
              onClick={() => onChoose(group)}
              onKeyDown={(event) => move(event, layout, group.id)}
            >
              <span className={classes.boxName}>{nameOf(group)}</span>
              <span className={classes.boxKind}>{kindOf(group)}</span>
              <span className={classes.boxStates}>{spokenCounts(group.states)}</span>
              <Shares of={group} />
            </button>
          );
        })}
      </div>
    </div>
  );
}

/** The states as parts of a bar; the text above it says the same. */
function Shares({ of: group }: { of: GraphGroup }) {
  const all = total(group.states);
  return (
    <span className={classes.shares} aria-hidden="true">
      {some(group.states).map((state) => (
        <span key={state} data-tone={state === "waiting" ? "waits" : toneIn(state)} style={{ flexGrow: Math.max((group.states[state] ?? 0) / all, 0.02) }} />
      ))}
    </span>
  );
}

export function nameOf(group: GraphGroup): string {
  const name = group.name ?? (group.kind || (group.is_workflow ? "workflows" : "all types"));
  return group.nodes > 1 ? `${name} × ${count(group.nodes)}` : name;
}

export function kindOf(group: GraphGroup): string {
  const parts = [
    group.is_workflow ? "workflow" : group.name === null || group.name === group.kind ? "" : group.kind,
    group.within.length > 0 ? `in ${group.within.join(" / ")}` : "",
    group.last_level > group.level ? `levels ${count(group.level + 1)} to ${count(group.last_level + 1)}` : "",
  ];
  return parts.filter((part) => part !== "").join(", ");
}

const titleOf = (group: GraphGroup) => [nameOf(group), kindOf(group), spokenCounts(group.states)].filter((part) => part !== "").join("\n");

/** The group to show first: with failed nodes, else with nodes that are worked on, else the first that waits. */
function ofInterest(groups: readonly GraphGroup[]): GraphGroup | undefined {
  for (const state of ["failed", "processing", "running", "pending", "waiting"]) {
    const found = groups.find((group) => (group.states[state] ?? 0) > 0);
    if (found !== undefined) return found;
  }
  return groups[0];
}

function show(place: HTMLElement | null, layout: Layout, id: string | undefined): void {
  const at = id === undefined ? undefined : layout.boxes.get(id);
  if (place === null || at === undefined) return;
  place.scrollLeft = Math.max(0, at.x - (place.clientWidth - BOX.width) / 2);
  place.scrollTop = Math.max(0, at.y - (place.clientHeight - BOX.height) / 2);
}

const DIRECTIONS: Readonly<Record<string, readonly [number, number]>> = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

/** Move the focus to the nearest box in the direction of an arrow key. */
function move(event: KeyboardEvent<HTMLElement>, layout: Layout, from: string): void {
  const direction = DIRECTIONS[event.key];
  const here = layout.boxes.get(from);
  if (direction === undefined || here === undefined) return;
  event.preventDefault();
  const [right, down] = direction;
  let nearest: { id: string; far: number } | null = null;
  for (const [id, box] of layout.boxes) {
    const [dx, dy] = [box.x - here.x, box.y - here.y];
    const along = dx * right + dy * down;
    const across = Math.abs(dx * down) + Math.abs(dy * right);
    if (along > 0 && (right === 0 ? across < BOX.width : true)) {
      const far = along + 2 * across;
      if (nearest === null || far < nearest.far) nearest = { id, far };
    }
  }
  if (nearest !== null) event.currentTarget.parentElement?.querySelector<HTMLElement>(`[data-group="${nearest.id}"]`)?.focus();
}
