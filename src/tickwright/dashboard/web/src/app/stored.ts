/** Preferences, stored in this browser; without storage they last until the page is left. */
import { useSyncExternalStore } from "react";

export interface Stored<T extends string> {
  get(): T;
  set(value: T): void;
  use(): T;
}

/** Return a preference with one of `values`; the first one is the default. */
export function stored<T extends string>(name: string, values: readonly [T, ...T[]]): Stored<T> {
  const key = `tickwright.${name}`;
  const listeners = new Set<() => void>();
  let value = values.find((one) => one === read(key)) ?? values[0];
  const get = (): T => value;
  const subscribe = (listener: () => void) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  };
  return {
    get,
    set: (next) => {
      value = next;
      write(key, next);
      listeners.forEach((notify) => notify());
    },
    use: () => useSyncExternalStore(subscribe, get),
  };
}

function read(key: string): string | null {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

function write(key: string, value: string): void {
  try {
    localStorage.setItem(key, value);
  } catch {
    // the preference lasts until the page is left
  }
}
