/**
 * The views. Each folder in `views/` has a `view.ts` that registers it; nothing else names it.
 *
 * `view.ts` is in the first script that a browser loads, so it imports its component lazily.
 */
import { lazy, type ComponentType, type LazyExoticComponent } from "react";

export type Group = "" | "Jobs" | "Polling" | "Fan-out" | "Reports" | "Campaigns" | "Operation";
export const GROUPS: readonly Group[] = ["", "Jobs", "Polling", "Fan-out", "Reports", "Campaigns", "Operation"];

export interface ViewInfo {
  /** Below the dashboard's address, such as `/jobs`; parameters as `/accounts/:id`. */
  path: string;
  title: string;
  group: Group;
  /** Position within the group; without it the view has no entry in the navigation (a detail view). */
  order?: number;
  /** The view opens with `g` and this letter. */
  key?: string;
  /** The role that may see it; every role if left out. */
  role?: "operator" | "admin";
  load: () => Promise<{ default: ComponentType }>;
  /** Addresses to offer for `text` in the header's search. */
  find?: (text: string) => { label: string; to: string }[];
}

export interface View extends ViewInfo {
  component: LazyExoticComponent<ComponentType>;
}

const modules = import.meta.glob<{ views: ViewInfo[] }>("../views/*/view.ts", { eager: true });

export const VIEWS: readonly View[] = Object.values(modules)
  .flatMap((module) => module.views)
  .map((info) => ({ ...info, component: lazy(info.load) }))
  .sort((a, b) => GROUPS.indexOf(a.group) - GROUPS.indexOf(b.group) || (a.order ?? 99) - (b.order ?? 99));
