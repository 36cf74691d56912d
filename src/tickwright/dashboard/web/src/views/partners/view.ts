import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [{ path: "/partners", title: "Partners", group: "Polling", order: 4, key: "p", load: () => import("./PartnersView") }];
