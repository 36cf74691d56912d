/** The figures of one cell of the heat map. */
import { Button, Group } from "@mantine/core";
import { zone } from "../../app/prefs";
import { Facts } from "../../parts/Facts";
import { count } from "../../parts/Figure";
import { instantText } from "../../parts/Instant";
import { useUrl } from "../../parts/useUrl";
import { Section } from "../../parts/View";
import { useMay } from "../../app/session";
import { beginOf, type Grid, type Heat } from "./heat";
import classes from "./slices.module.css";

/** The cell under the pointer in one line. */
export function CellLine({ grid, place }: { grid: Grid; place: number | null }) {
  const shown = zone.use();
  if (place === null) return <span className={classes.quiet}>Point at a cell, or choose one with a click or the arrows.</span>;
  const cell = grid.cells[place];
  return (
    <span>
      {instantText(beginOf(grid, place), shown)}:{" "}
      {cell === undefined ? "no tracker was due" : `${count(cell.expected)} expected, ${count(cell.selected)} selected, ${count(cell.polled)} polled, ${count(cell.late)} late`}
    </span>
  );
}

export function SliceCell({ heat, grid, place }: { heat: Heat; grid: Grid; place: number }) {
  const shown = zone.use();
  const url = useUrl();
  const may = useMay("operator");
  const cell = grid.cells[place];
  const begin = beginOf(grid, place);
  const end = begin + grid.stepMs;
  const title = `${instantText(begin, shown)} to ${instantText(end, shown).slice(11)}`;
  const replayable = cell !== undefined && begin < Date.parse(heat.now);
  return (
    <Section title={title}>
      {cell === undefined ? (
        <p className={classes.quiet}>No tracker was due in this slice.</p>
      ) : (
        <Facts
          of={[
            ["Expected", count(cell.expected)],
            ["Selected", count(cell.selected)],
            ["Published", count(cell.published)],
            ["Polled", count(cell.polled)],
            ["Late", count(cell.late)],
            ["Unanswered", count(cell.unanswered)],
            ["Skipped", count(cell.skipped)],
            ["Deferred by a cap", count(cell.deferred)],
            ["Superseded", count(cell.superseded)],
            ["Coalesced", count(cell.coalesced)],
            ["Flatness", cell.flatness === null ? null : cell.flatness.toFixed(2)],
            ["Replayable time slots", count(cell.last_turns)],
          ]}
        />
      )}
      <Group gap="xs" mt="xs">
        {may && replayable && (
          <Button variant="default" onClick={() => url.set({ replay: new Date(begin).toISOString(), until: new Date(end).toISOString() }, true)}>
            Replay missing polls
          </Button>
        )}
        {grid.stepMs > 60_000 && (
          <Button variant="default" onClick={() => url.set({ from: new Date(begin).toISOString(), to: new Date(end).toISOString(), step: "1", slice: null }, true)}>
            Minute by minute
          </Button>
        )}
      </Group>
    </Section>
  );
}
