/** Keyboard shortcuts: `/` goes to the first filter, `g` and a letter to a view, `?` lists them. Inactive while a field has the focus. */
import { useEffect } from "react";
import { useLocation } from "wouter";
import { VIEWS } from "./registry";

const CHORD_MS = 1500;

function types(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

export function useKeys({ onHelp }: { onHelp: () => void }): void {
  const [, go] = useLocation();
  useEffect(() => {
    let chordAt = -Infinity;
    function pressed(event: KeyboardEvent): void {
      if (event.ctrlKey || event.metaKey || event.altKey || types(event.target)) return;
      if (document.querySelector('[role="dialog"]') !== null) return;
      const view = event.timeStamp - chordAt < CHORD_MS ? VIEWS.find((one) => one.key === event.key) : undefined;
      chordAt = event.key === "g" ? event.timeStamp : -Infinity;
      if (view !== undefined) go(view.path);
      else if (event.key === "/") focusFilter();
      else if (event.key === "?") onHelp();
      else return;
      event.preventDefault();
    }
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, [go, onHelp]);
}

function focusFilter(): void {
  const first = document.querySelector<HTMLElement>("[data-first-filter]") ?? document.querySelector<HTMLElement>("[data-search]");
  first?.focus();
}
