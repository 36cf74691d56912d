/** The frame around every view: the header, the navigation, and the banner for stale figures. */
import { AppShell } from "@mantine/core";
import { useCallback, useEffect, useState, type MouseEvent, type ReactNode } from "react";
import { useLocation } from "wouter";
import { ConfirmProvider } from "../parts/Confirm";
import classes from "./app.module.css";
import { Banner } from "./Banner";
import { Header } from "./Header";
import { KeysHelp } from "./KeysHelp";
import { useKeys } from "./keys";
import { Navigation } from "./Navigation";

const CONTENT = "content";

export function Shell({ children }: { children: ReactNode }) {
  const [menu, setMenu] = useState(false);
  const [help, setHelp] = useState(false);
  const [place] = useLocation();
  useEffect(() => setMenu(false), [place]);
  useKeys({ onHelp: useCallback(() => setHelp(true), []) });
  return (
    <ConfirmProvider>
      <AppShell header={{ height: 46 }} navbar={{ width: 196, breakpoint: "sm", collapsed: { mobile: !menu } }} padding="md">
        <SkipLink />
        <AppShell.Header>
          <Header menu={menu} onMenu={() => setMenu(!menu)} onHelp={() => setHelp(true)} />
        </AppShell.Header>
        <AppShell.Navbar>
          <Navigation />
        </AppShell.Navbar>
        <AppShell.Main className={classes.main} id={CONTENT} tabIndex={-1}>
          <Banner />
          {children}
        </AppShell.Main>
      </AppShell>
      <KeysHelp open={help} onClose={() => setHelp(false)} />
    </ConfirmProvider>
  );
}

/** The first element that Tab reaches: it skips the header and the navigation. */
function SkipLink() {
  const skip = (event: MouseEvent) => {
    event.preventDefault(); // the address stays that of the view
    document.getElementById(CONTENT)?.focus();
  };
  return (
    <a href={`#${CONTENT}`} className={classes.skip} onClick={skip}>
      Skip to the content
    </a>
  );
}
