import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [{ path: "/modules", title: "Modules", group: "Fan-out", order: 2, key: "m", load: () => import("./ModulesView") }];
