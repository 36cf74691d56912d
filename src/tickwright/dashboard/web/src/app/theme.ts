/** The theme of Mantine: small, dense, system fonts, one accent colour. */
import { createTheme, type MantineColorsTuple } from "@mantine/core";

const accent: MantineColorsTuple = [
  "#edf4fc", "#d9e6f5", "#b0cceb", "#84b0e1", "#5f98d8", "#4889d3", "#3b81d1", "#2c6eb9", "#1f5fa6", "#0b4f8f",
]; // prettier-ignore

export const theme = createTheme({
  primaryColor: "accent",
  primaryShade: { light: 8, dark: 7 },
  colors: { accent },
  defaultRadius: "sm",
  fontFamily: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', sans-serif",
  fontFamilyMonospace: "ui-monospace, 'SF Mono', 'Cascadia Mono', 'DejaVu Sans Mono', 'Liberation Mono', monospace",
  fontSizes: { xs: "12px", sm: "13px", md: "14px", lg: "16px", xl: "19px" },
  headings: { fontWeight: "600", sizes: { h1: { fontSize: "20px" }, h2: { fontSize: "16px" }, h3: { fontSize: "14px" } } },
  focusRing: "auto",
  // no scroll lock behind a dialogue: the page itself never scrolls, and the lock would write a style without the nonce
  components: {
    Button: { defaultProps: { size: "xs" } },
    TextInput: { defaultProps: { size: "xs" } },
    PasswordInput: { defaultProps: { size: "sm" } },
    NumberInput: { defaultProps: { size: "xs" } },
    Textarea: { defaultProps: { size: "xs" } },
    Select: { defaultProps: { size: "xs" } },
    Autocomplete: { defaultProps: { size: "xs" } },
    SegmentedControl: { defaultProps: { size: "xs" } },
    Checkbox: { defaultProps: { size: "xs" } },
    Switch: { defaultProps: { size: "xs" } },
    ActionIcon: { defaultProps: { variant: "subtle", color: "gray" } },
    Tooltip: { defaultProps: { openDelay: 300, withArrow: true } },
    Modal: { defaultProps: { lockScroll: false, centered: true, transitionProps: { duration: 80 } } },
    Drawer: { defaultProps: { lockScroll: false, transitionProps: { duration: 100 } } },
  },
});
