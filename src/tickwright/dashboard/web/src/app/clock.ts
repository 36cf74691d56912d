/** The server's time: instants are the database's, so ages are counted on its clock and not on the viewer's. */
import { useSyncExternalStore } from "react";

let offsetMs = 0;
let offsetIsSharp = false;

/** Learn the server's time; an answer's `Date` has whole seconds, a snapshot is sharper. */
export function learn(serverMs: number, sharp: boolean): void {
  if (offsetIsSharp && !sharp) return;
  offsetMs = serverMs - Date.now();
  offsetIsSharp = sharp;
}

/** Return the server's time in milliseconds. */
export function now(): number {
  return Date.now() + offsetMs;
}

const listeners = new Set<() => void>();
let timer: ReturnType<typeof setInterval> | undefined;
let second = Math.floor(now() / 1000);

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  timer ??= setInterval(() => {
    second = Math.floor(now() / 1000);
    if (!document.hidden) listeners.forEach((tell) => tell());
  }, 1000);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) {
      clearInterval(timer);
      timer = undefined;
    }
  };
}

/** Return the server's time in whole seconds; what uses it is drawn again each second. */
export function useSecond(): number {
  return useSyncExternalStore(subscribe, () => second);
}
