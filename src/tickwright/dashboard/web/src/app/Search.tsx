/** The header's search: offers the addresses that the views find for the text, and views by their title. */
import { Autocomplete } from "@mantine/core";
import { useState } from "react";
import { useLocation } from "wouter";
import { Glyph } from "../parts/Glyph";
import classes from "./app.module.css";
import { VIEWS } from "./registry";

interface Offer {
  label: string;
  to: string;
}

function offers(text: string): Offer[] {
  const wanted = text.trim();
  if (wanted === "") return [];
  const named = VIEWS.filter((view) => view.order !== undefined && view.title.toLowerCase().includes(wanted.toLowerCase()));
  const found = VIEWS.flatMap((view) => view.find?.(wanted) ?? []);
  return [...found, ...named.map((view) => ({ label: `View ${view.title}`, to: view.path }))];
}

export function Search() {
  const [typed, setTyped] = useState("");
  const [, go] = useLocation();
  const found = offers(typed);
  return (
    <Autocomplete
      className={classes.search}
      aria-label="Search"
      placeholder="Go to an id, a key, a view"
      data-search
      maxLength={200}
      leftSection={<Glyph name="search" size={14} />}
      value={typed}
      onChange={setTyped}
      data={[...new Map(found.map((offer) => [offer.label, offer])).keys()]}
      filter={({ options }) => options}
      defaultDropdownOpened={false}
      selectFirstOptionOnChange
      onOptionSubmit={(label) => {
        const offer = found.find((one) => one.label === label);
        if (offer !== undefined) go(offer.to);
        setTimeout(() => setTyped(""), 0);
      }}
    />
  );
}
