/** The server's time. Instants are from the database's clock, so ages are computed with it and not with the browser's clock. */
import { useSyncExternalStore } from "react";

let offsetMs = 0;
let offsetIsPrecise = false;

/** Set the server's time. The `Date` of an answer has whole seconds; a snapshot is more precise. */
export function learn(serverMs: number, isPrecise: boolean): void {
  if (offsetIsPrecise && !isPrecise) return;
  offsetMs = serverMs - Date.now();
  offsetIsPrecise = isPrecise;
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
    if (!document.hidden) listeners.forEach((notify) => notify());
  }, 1000);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) {
      clearInterval(timer);
      timer = undefined;
    }
  };
}

/** Return the server's time in whole seconds; a component that uses it is rendered again each second. */
export function useSecond(): number {
  return useSyncExternalStore(subscribe, () => second);
}
