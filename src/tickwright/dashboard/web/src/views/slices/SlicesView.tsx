/** The slice ledger as a heat map: polls expected, selected, published, polled, late; and the flatness. */
import { SegmentedControl, Stack } from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { get } from "../../api/client";
import { now as serverNow } from "../../app/clock";
import { updating } from "../../app/prefs";
import { markUsable } from "../../app/usable";
import { Answer } from "../../parts/Answer";
import { EmptyState } from "../../parts/EmptyState";
import { count } from "../../parts/Figure";
import { ChoiceFilter, Filters } from "../../parts/Filters";
import { TimeFilter } from "../../parts/TimeFilter";
import { CheckedParameter } from "../../parts/ParameterChecks";
import { useUrl, type Url } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { usePartnerNames } from "../partners/names";
import { beginOf, gridOf, MEASURES, placeOf, strengths, type Heat } from "./heat";
import { HeatMap } from "./HeatMap";
import { CellLine, SliceCell } from "./SliceCell";
import { Replay } from "./Replay";
import { Differences } from "./Differences";
import classes from "./slices.module.css";

const NAMES = ["partner", "step", "from", "to"] as const;
const FIGURES = MEASURES.map((one) => one.value);
const STEPS = ["1", "15", "60"] as const;
type Step = "1" | "5" | "15" | "60";

function measureOf(url: Url): (typeof MEASURES)[number] {
  return MEASURES.find((one) => one.value === url.one("figure")) ?? MEASURES[0];
}

function useHeat() {
  const url = useUrl();
  const held = updating.use() === "held";
  const query = {
    partner: url.one("partner") || undefined,
    step: (STEPS.find((one) => one === url.one("step")) ?? "5") as Step,
    from: url.one("from") || undefined,
    to: url.one("to") || undefined,
  };
  return useQuery({
    queryKey: ["slices", query],
    queryFn: ({ signal }) => get("/v1/slices:heat", { query, signal }) as Promise<Heat>,
    refetchInterval: held ? false : 15_000,
    placeholderData: keepPreviousData,
  });
}

export default function SlicesView() {
  const url = useUrl();
  const partners = usePartnerNames();
  const found = useHeat();
  useEffect(() => {
    if (found.data !== undefined) markUsable();
  }, [found.data]);
  return (
    <View title="Slices" actions={<Replay />}>
      <CheckedParameter name="figure" label="Figure" possible={FIGURES} />
      <Filters names={NAMES}>
        <ChoiceFilter name="partner" label="Partner" names options={partners} />
        <ChoiceFilter name="step" label="A cell is" all="5 minutes" width={130} options={STEPS.map((step) => ({ value: step, label: STEP_NAMES[step] }))} />
        <TimeFilter name="from" label="From" />
        <TimeFilter name="to" label="Before" />
      </Filters>
      <SegmentedControl
        aria-label="Figure"
        style={{ alignSelf: "flex-start", maxWidth: "100%", overflowX: "auto" }}
        value={measureOf(url).value}
        onChange={(figure) => url.set({ figure: figure === "expected" ? null : figure })}
        data={MEASURES.map(({ value, label }) => ({ value, label }))}
      />
      <Answer of={found} lines={14} alone>
        {(heat) =>
          heat.cells.length === 0 ? (
            <EmptyState title="No tracker was due in these slices">Trackers are in slices once they are placed: choose another range or partner, or register trackers.</EmptyState>
          ) : (
            <Map heat={heat} />
          )
        }
      </Answer>
    </View>
  );
}

const STEP_NAMES = { "1": "1 minute", "15": "15 minutes", "60": "an hour" } as const;

function Map({ heat }: { heat: Heat }) {
  const url = useUrl();
  const grid = useMemo(() => gridOf(heat), [heat]);
  const chosenMeasure = measureOf(url);
  const [pointed, setPointed] = useState<number | null>(null);
  const chosen = url.one("slice") === "" ? null : placeOf(grid, url.one("slice"));
  const [settled] = useDebouncedValue(chosen, 200);
  const most = useMemo(() => strengths(grid, chosenMeasure.value).most, [grid, chosenMeasure]);
  const nowMs = Date.parse(heat.now);
  return (
    <div className={classes.body}>
      <Stack gap="sm">
        <div className={classes.legend}>
          <span>
            0<span className={classes.scale} style={{ background: `linear-gradient(90deg, color-mix(in srgb, var(--${chosenMeasure.tone}) 14%, transparent), var(--${chosenMeasure.tone}))` }} />
            {count(most)}
          </span>
          <span title="The fullest ten seconds against the average ones; 1 is level">
            Flatness <b>{heat.flatness === null ? "–" : heat.flatness.toFixed(2)}</b> <span className={classes.quiet}>peak to mean</span>
          </span>
          <CellLine grid={grid} place={pointed} />
        </div>
        <HeatMap
          grid={grid}
          measure={chosenMeasure.value}
          tone={chosenMeasure.tone}
          nowMs={Number.isNaN(nowMs) ? serverNow() : nowMs}
          chosen={chosen}
          onChoose={(place) => url.set({ slice: new Date(beginOf(grid, place)).toISOString() })}
          onPoint={setPointed}
        />
        {settled !== null && <SliceCell heat={heat} grid={grid} place={settled} />}
        <Differences heat={heat} />
      </Stack>
    </div>
  );
}
