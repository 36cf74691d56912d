import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  { path: "/overview", title: "Overview", group: "", order: 1, key: "o", load: () => import("./OverviewView") },
];
