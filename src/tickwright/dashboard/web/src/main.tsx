import { MantineProvider } from "@mantine/core";
import { Notifications } from "@mantine/notifications";
import { QueryClientProvider } from "@tanstack/react-query";
import { createRoot } from "react-dom/client";
import "@mantine/core/styles.css";
import "@mantine/notifications/styles.css";
import "./app/page.css";
import { connect } from "./api/client";
import { keepsNumbers } from "./api/json";
import { App } from "./app/App";
import { learn } from "./app/clock";
import { queries } from "./app/queries";
import { theme } from "./app/theme";

const nonce = document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')?.content;
const place = document.getElementById("page");

function Page() {
  return (
    <MantineProvider theme={theme} defaultColorScheme="auto" {...(nonce ? { getStyleNonce: () => nonce } : {})}>
      <Notifications position="bottom-right" limit={3} />
      <QueryClientProvider client={queries}>
        <App />
      </QueryClientProvider>
    </MantineProvider>
  );
}

connect({ onDate: (at) => learn(at, false) });
if (place !== null && keepsNumbers()) createRoot(place).render(<Page />);
else place?.append("This browser cannot represent 64-bit ids. Use Chrome 114, Firefox 135, Safari 18.4 or later.");
