/** The outbox: lag by destination, waiting messages, and the relays of polls with their partitions. */
import { SegmentedControl } from "@mantine/core";
import { Link } from "wouter";
import { useOverview } from "../../app/live";
import { spoken } from "../../parts/Duration";
import { count, rate } from "../../parts/Figure";
import { Tile, Tiles } from "../../parts/Panel";
import { CheckedParameter } from "../../parts/ParameterChecks";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { Destinations } from "./Destinations";
import { Messages } from "./Messages";
import { PollRelays } from "./PollRelays";
import { PollPartitions } from "./PollPartitions";

const PARTS = [
  { value: "", label: "Destinations" },
  { value: "messages", label: "Messages" },
  { value: "relays", label: "Poll relays" },
  { value: "partitions", label: "Poll partitions" },
];
const NAMED = PARTS.map((part) => part.value).filter((value) => value !== "");

export default function OutboxView() {
  const url = useUrl();
  const part = url.one("part");
  return (
    <View title="Outbox">
      <CheckedParameter name="part" label="Part" possible={NAMED} />
      <Lag />
      <SegmentedControl aria-label="Part" style={{ alignSelf: "flex-start", maxWidth: "100%", overflowX: "auto" }} value={part} onChange={(value) => url.set({ part: value })} data={PARTS} />
      {part === "messages" ? <Messages /> : part === "relays" ? <PollRelays /> : part === "partitions" ? <PollPartitions /> : <Destinations />}
    </View>
  );
}

function Lag() {
  const outbox = useOverview((overview) => overview.outbox);
  const dead = useOverview((overview) => overview.dead_letters.outbox);
  return (
    <Tiles>
      <Tile title="Waiting messages" value={outbox === null ? "–" : count(outbox.waiting, 10_000)} below={outbox === null ? "" : `for ${count(outbox.destinations)} destination${outbox.destinations === 1 ? "" : "s"}`} />
      <Tile title="Oldest message" value={outbox === null || outbox.waiting === 0 ? "–" : spoken(outbox.oldest_s)} />
      <Tile title="Published per second" value={outbox?.published_per_s == null ? "–" : rate(outbox.published_per_s)} />
      <Tile title="Failing destinations" value={outbox === null ? "–" : count(outbox.failing)} tone={outbox !== null && outbox.failing > 0 ? "bad" : undefined} />
      <Tile title="Dead letters" value={dead === null ? "–" : count(dead, 10_000)} tone={dead !== null && dead > 0 ? "warn" : undefined} below={<Link href="/dead-letters?kind=outbox">show</Link>} />
    </Tiles>
  );
}
