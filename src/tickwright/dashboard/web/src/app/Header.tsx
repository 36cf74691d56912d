/** The header: the search, whether the figures are current, display settings, and the signed-in key. */
import { ActionIcon, Burger, Menu, SegmentedControl, Text, Tooltip, useComputedColorScheme, useMantineColorScheme } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { Link } from "wouter";
import { del } from "../api/client";
import { Glyph } from "../parts/Glyph";
import { instantText } from "../parts/Instant";
import classes from "./app.module.css";
import { useFreshness } from "./live";
import { Mark } from "./Mark";
import { updating, zone } from "./prefs";
import { end } from "./queries";
import { Search } from "./Search";
import { useSession } from "./session";

interface Props {
  menu: boolean;
  onMenu: () => void;
  onHelp: () => void;
}

export function Header({ menu, onMenu, onHelp }: Props) {
  return (
    <div className={classes.header}>
      <Burger opened={menu} onClick={onMenu} hiddenFrom="sm" size="sm" aria-label="Views" aria-expanded={menu} />
      <Link href="/" className={classes.logo} aria-label="Tickwright, overview">
        <Mark />
        <span>Tickwright</span>
      </Link>
      <Search />
      <div className={classes.right}>
        <LiveBadge />
        <UpdateSwitch />
        <ZoneSwitch />
        <SchemeSwitch />
        <Tooltip label="Keyboard shortcuts (?)">
          <ActionIcon onClick={onHelp} aria-label="Keyboard shortcuts" visibleFrom="sm">
            <Glyph name="keys" />
          </ActionIcon>
        </Tooltip>
        <SessionMenu />
      </div>
    </div>
  );
}

const LABELS = { starting: "Connecting", stream: "Live", polling: "Polling", held: "Updates stopped", unavailable: "No answer" };

function LiveBadge() {
  const { source, staleSince } = useFreshness();
  const shown = zone.use();
  const isStale = staleSince !== null && source !== "held";
  return (
    <Tooltip label={isStale ? `Stale since ${instantText(staleSince, shown)}` : LABELS[source]}>
      <span className={classes.live} data-state={isStale ? "stale" : source} data-testid="live">
        <Text span size="xs" visibleFrom="sm">
          {isStale ? "Stale" : LABELS[source]}
        </Text>
      </span>
    </Tooltip>
  );
}

function UpdateSwitch() {
  const held = updating.use() === "held";
  const label = held ? "Resume updates" : "Stop updates";
  return (
    <Tooltip label={label}>
      <ActionIcon onClick={() => updating.set(held ? "live" : "held")} aria-label={label} aria-pressed={held} visibleFrom="sm">
        <Glyph name={held ? "play" : "pause"} />
      </ActionIcon>
    </Tooltip>
  );
}

function ZoneSwitch() {
  const shown = zone.use();
  return (
    <SegmentedControl
      aria-label="Time zone"
      visibleFrom="sm"
      value={shown}
      onChange={(value) => zone.set(value === "utc" ? "utc" : "local")}
      data={[
        { value: "local", label: "Local" },
        { value: "utc", label: "UTC" },
      ]}
    />
  );
}

function SchemeSwitch() {
  const { setColorScheme } = useMantineColorScheme();
  const scheme = useComputedColorScheme("light");
  const other = scheme === "dark" ? "light" : "dark";
  return (
    <Tooltip label={`Switch to the ${other} scheme`}>
      <ActionIcon onClick={() => setColorScheme(other)} aria-label={`Switch to the ${other} scheme`}>
        <Glyph name={scheme === "dark" ? "sun" : "moon"} />
      </ActionIcon>
    </Tooltip>
  );
}

function SessionMenu() {
  const session = useSession();
  const queries = useQueryClient();
  const held = updating.use() === "held";
  const shown = zone.use();
  async function signOut() {
    await del("/v1/session");
    await end(queries);
  }
  return (
    <Menu position="bottom-end" width={230}>
      <Menu.Target>
        <ActionIcon aria-label={`Signed in as ${session.name}, ${session.role}`}>
          <Glyph name="person" />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Label>
          {session.name} · {session.role}
        </Menu.Label>
        <Menu.Item hiddenFrom="sm" onClick={() => zone.set(shown === "utc" ? "local" : "utc")}>
          {shown === "utc" ? "Show local time" : "Show UTC"}
        </Menu.Item>
        <Menu.Item hiddenFrom="sm" onClick={() => updating.set(held ? "live" : "held")}>
          {held ? "Resume updates" : "Stop updates"}
        </Menu.Item>
        {session.csrf !== null && <Menu.Item onClick={() => void signOut()}>Sign out</Menu.Item>}
        <Menu.Label>Tickwright {session.version}</Menu.Label>
      </Menu.Dropdown>
    </Menu>
  );
}
