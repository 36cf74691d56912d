import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [{ path: "/slices", title: "Slices", group: "Polling", order: 3, key: "s", load: () => import("./SlicesView") }];
